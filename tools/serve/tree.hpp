// The tree of conversations: which state continues which, by their tokens alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace stet::serve {

// A state as an item of the tree.
struct TreeItem {
  std::span<const int32_t> transcript;  // [tokens], including those that a prune has shifted out
  std::string_view id;
  std::string_view parent;  // id of the state from which an operation made it, or ""
};

constexpr size_t kTreeRoot = SIZE_MAX;

// Returns for each item the index of its parent in the tree, or kTreeRoot. The parent is the item
// with the longest transcript that is a proper, non-empty beginning of its own. Among equals, it is
// the one from which operations made the item, else the first. Takes linear time in the tokens.
std::vector<size_t> conversation_tree(std::span<const TreeItem> items);

}  // namespace stet::serve
