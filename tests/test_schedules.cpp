// Random schedules of appends, rewinds, forks and changes of how to compute, each compared byte for byte with
// the same tokens processed at once. STET_SCHEDULES=N runs N of them, STET_SEED=S begins at seed S; a failure
// prints the two that repeat it alone.
#include <fmt/format.h>

#include <list>
#include <sstream>

#include "support.hpp"

namespace stet::test {
namespace {

constexpr int64_t kCapacity = 300;

uint64_t setting(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

class Schedule {
 public:
  Schedule(const Subject& subject, uint32_t seed) : model_(model(subject.directory)), random_(seed) {
    log_ << subject.name;
    const KvType types[] = {KvType::f32, KvType::f32, KvType::bf16, KvType::f16};
    options_.kv_type = types[draw(4)];
    options_.capacity = kCapacity;
    options_.compute = compute();
    log_ << ", kv " << kv_type_name(options_.kv_type) << ", " << compute_text(options_.compute);
    branches_.push_back({Session(model_, options_), {}, branch_count_++});
  }

  // True if nothing differed. log() then tells what was done.
  testing::AssertionResult run() {
    for (size_t steps = 4 + draw(12); steps > 0; --steps) step();
    for (Branch& b : branches_) {
      SessionOptions plain = options_;
      plain.compute = {};
      plain.compute.threads = 1;
      Session straight(model_, plain);
      straight.append(b.tokens);
      if (b.session.tokens() != b.tokens) return testing::AssertionFailure() << "#" << b.number << ": wrong tokens";
      const testing::AssertionResult same = same_state(b.session, straight);
      if (!same) return testing::AssertionFailure() << "#" << b.number << ": " << same.message();
    }
    return testing::AssertionSuccess();
  }
  std::string log() const { return log_.str(); }

 private:
  struct Branch {
    Session session;
    std::vector<int32_t> tokens;  // what the session ought to hold
    int number;
  };

  size_t draw(size_t n) { return random_() % n; }

  ComputeOptions compute() {
    ComputeOptions c;
    size_t sets = 0;
    while (kernel_names()[sets] != nullptr) ++sets;
    // The portable kernels are slow: the small checkpoints alone.
    const size_t first = sets > 1 && model_->weight_bytes() > size_t{4} << 20 ? 1 : 0;
    c.isa = kernel_names()[draw(4) == 0 || *STET_DEFAULT_ISA ? first + draw(sets - first) : sets - 1];
    const int threads[] = {1, 1, 1, 2, 3, 5};
    c.threads = threads[draw(6)];
    const int64_t chunks[] = {1, 2, 7, 63, 64, 65, 512};
    c.chunk = chunks[draw(7)];
    // A token alone costs hundreds of barriers, dear where threads outnumber processors: few of those here.
    if (c.threads > 1) c.chunk = std::max<int64_t>(c.chunk, 31);
    return c;
  }
  static std::string compute_text(const ComputeOptions& c) {
    return fmt::format("{} threads {} chunk {}", c.isa, c.threads, c.chunk);
  }

  std::vector<int32_t> draw_tokens(int64_t n) {
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (int32_t& id : ids) id = static_cast<int32_t>(draw(static_cast<size_t>(model_->config().vocab_size)));
    return ids;
  }

  void append(Branch& b) {
    const int64_t lengths[] = {1, 1, 2, 3, 7, 31, 63, 64, 65};
    const size_t kind = draw(12);
    int64_t n = kind < 9 ? lengths[kind] : 1 + static_cast<int64_t>(draw(130));
    if (b.session.compute().threads > 2) n = std::max<int64_t>(n, 31);
    n = std::min(n, kCapacity - b.session.size());
    const std::vector<int32_t> ids = draw_tokens(n);
    log_ << "append " << n;
    b.session.append(ids);
    b.tokens.insert(b.tokens.end(), ids.begin(), ids.end());
  }

  // Refused, and nothing may have changed.
  void failing_append(Branch& b) {
    std::vector<int32_t> ids = draw_tokens(1 + static_cast<int64_t>(draw(70)));
    const size_t kind = b.session.size() + static_cast<int64_t>(ids.size()) <= kCapacity ? draw(3) : 0;
    if (kind == 0) ids = draw_tokens(kCapacity + 1 - b.session.size());
    if (kind == 1) ids.back() = -1;
    log_ << "failing append " << ids.size() << " kind " << kind;
    const int64_t stop = b.session.size() + static_cast<int64_t>(draw(ids.size()));
    const auto sink = [&](int64_t first, Rows rows) {
      if (first + static_cast<int64_t>(rows.count) > stop) throw std::runtime_error("sink");
    };
    EXPECT_ANY_THROW(b.session.append(ids, kind == 2 ? LogitSink(sink) : nullptr));
  }

  void rewind(Branch& b) {
    const int64_t size = b.session.size();
    int64_t to = static_cast<int64_t>(draw(static_cast<size_t>(size) + 1));
    const size_t kind = draw(4);
    if (kind == 0) to = to / kBlockPositions * kBlockPositions;
    if (kind == 1) to = std::max<int64_t>(size - 1 - static_cast<int64_t>(draw(3)), 0);
    log_ << "rewind " << to;
    b.session.rewind(to);
    b.tokens.resize(static_cast<size_t>(to));
  }

  void fork(const Branch& b) {
    log_ << "fork #" << branch_count_;
    branches_.push_back({b.session.fork(), b.tokens, branch_count_++});
    if (branches_.size() > 3) {
      log_ << ", drop #" << branches_.front().number;
      branches_.pop_front();
    }
  }

  void step() {
    auto it = branches_.begin();
    std::advance(it, draw(branches_.size()));
    log_ << "; #" << it->number << " ";
    switch (draw(10)) {
      default: return append(*it);
      case 5: return failing_append(*it);
      case 6: return rewind(*it);
      case 7: return fork(*it);
      case 8: {
        const ComputeOptions c = compute();
        log_ << compute_text(c);
        return it->session.set_compute(c);
      }
      case 9: log_ << "logits"; it->session.logits();
    }
  }

  std::shared_ptr<const Model> model_;
  std::mt19937 random_;
  SessionOptions options_;
  std::list<Branch> branches_;
  int branch_count_ = 0;
  std::ostringstream log_;
};

TEST(Schedules, EqualTheSameTokensProcessedAtOnce) {
  const std::vector<Subject> all = subjects();
  const uint64_t count = setting("STET_SCHEDULES", 200), first = setting("STET_SEED", 1);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Schedule schedule(all[seed % all.size()], static_cast<uint32_t>(seed));
    ASSERT_TRUE(schedule.run()) << "repeat with STET_SCHEDULES=1 STET_SEED=" << seed << "\n" << schedule.log();
    ASSERT_FALSE(HasFailure()) << "repeat with STET_SCHEDULES=1 STET_SEED=" << seed << "\n" << schedule.log();
  }
}

}  // namespace
}  // namespace stet::test
