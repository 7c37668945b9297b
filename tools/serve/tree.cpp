#include "tools/serve/tree.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace stet::serve {
namespace {

// A radix tree of transcripts. A branch's label is the tokens that it adds to its ancestors.
class Branches {
 public:
  explicit Branches(std::span<const TreeItem> items) : items_(items), all_(1) {}

  // Returns the branch at which the transcript of this item ends.
  size_t add(size_t item) {
    const std::span<const int32_t> ids = items_[item].transcript;
    size_t at = 0;
    while (all_[at].end < ids.size()) {
      const size_t depth = all_[at].end;
      const auto [next, fresh] = below_.try_emplace(key(at, ids[depth]), all_.size());
      if (fresh) {
        all_.push_back({at, item, ids.size()});
        return next->second;
      }
      const size_t child = next->second;
      const size_t end = agree_until(child, ids);
      at = end == all_[child].end ? child : split(at, child, end);
    }
    return at;
  }

  size_t size() const { return all_.size(); }
  size_t above(size_t branch) const { return all_[branch].above; }

  // Returns all branches, each after its ancestors.
  std::vector<size_t> downwards() const {
    std::vector<size_t> order(all_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return all_[a].end < all_[b].end; });
    return order;
  }

 private:
  struct Branch {
    size_t above = 0;
    size_t item = 0;  // one whose transcript begins with this branch and its ancestors
    size_t end = 0;   // their number of tokens
  };

  static uint64_t key(size_t branch, int32_t token) {
    return static_cast<uint64_t>(branch) << 32 | static_cast<uint32_t>(token);
  }

  size_t agree_until(size_t branch, std::span<const int32_t> ids) const {
    const std::span<const int32_t> other = items_[all_[branch].item].transcript;
    const size_t most = std::min(all_[branch].end, ids.size());
    size_t n = all_[all_[branch].above].end;
    while (n < most && ids[n] == other[n]) ++n;
    return n;
  }

  // Inserts a branch that ends at `end` between two others, and returns it.
  size_t split(size_t above, size_t below, size_t end) {
    const std::span<const int32_t> ids = items_[all_[below].item].transcript;
    const size_t middle = all_.size();
    all_.push_back({above, all_[below].item, end});
    all_[below].above = middle;
    below_[key(above, ids[all_[above].end])] = middle;
    below_[key(middle, ids[end])] = below;
    return middle;
  }

  std::span<const TreeItem> items_;
  std::vector<Branch> all_;  // the first one is the root, which has no tokens
  std::unordered_map<uint64_t, size_t> below_;
};

constexpr size_t kNone = SIZE_MAX;

// Returns for each item the index of its parent by operation.
std::vector<size_t> parents_of(std::span<const TreeItem> items) {
  std::unordered_map<std::string_view, size_t> by_id;
  for (size_t i = 0; i < items.size(); ++i) by_id.emplace(items[i].id, i);
  std::vector<size_t> parents;
  for (const TreeItem& item : items) {
    const auto found = by_id.find(item.parent);
    parents.push_back(found == by_id.end() ? kNone : found->second);
  }
  return parents;
}

}  // namespace

std::vector<size_t> conversation_tree(std::span<const TreeItem> items) {
  Branches branches(items);
  std::vector<size_t> ends;  // the branch of each item
  for (size_t i = 0; i < items.size(); ++i) ends.push_back(branches.add(i));

  std::vector<size_t> first(branches.size(), kNone), count(branches.size(), 0);  // items at each
  for (size_t i = 0; i < items.size(); ++i) {
    if (count[ends[i]]++ == 0) first[ends[i]] = i;
  }
  // under[b]: the nearest ancestor of branch b at which an item ends; 0 if none or only empty ones.
  std::vector<size_t> under(branches.size(), 0);
  for (const size_t b : branches.downwards()) {
    const size_t above = branches.above(b);
    under[b] = first[above] != kNone ? above : under[above];
  }

  const std::vector<size_t> parents = parents_of(items);
  std::vector<size_t> hangs(items.size(), kTreeRoot), seen(items.size(), kNone);
  std::vector<bool> placed(items.size(), false);
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t target = under[ends[i]];
    placed[i] = true;
    if (target == 0) continue;
    hangs[i] = first[target];
    if (count[target] == 1) continue;
    // Operations may form a cycle: a deleted state can be made again from its own child.
    for (size_t p = parents[i]; p != kNone && seen[p] != i; p = parents[p]) {
      seen[p] = i;
      if (ends[p] != target && !(placed[p] && under[ends[p]] == target)) continue;
      hangs[i] = ends[p] == target ? p : hangs[p];
      break;
    }
  }
  return hangs;
}

}  // namespace stet::serve
