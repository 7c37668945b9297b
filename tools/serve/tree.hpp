// The tree of conversations: which state goes on from which, by their tokens alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace stet::serve {

// A state as the tree sees it.
struct TreeItem {
  std::span<const int32_t> transcript;  // [tokens], those that a prune has shifted out among them
  std::string_view id;
  std::string_view parent;  // the state from which an operation made it; "": none
};

constexpr size_t kTreeRoot = SIZE_MAX;

// Returns for each item the index of the one that it hangs under, or kTreeRoot. That is the longest
// one whose transcript is a beginning of its own: shorter, and not empty. Among equal ones it is
// the one that led to the item by operations, else the first. Takes time linear in the tokens.
std::vector<size_t> conversation_tree(std::span<const TreeItem> items);

}  // namespace stet::serve
