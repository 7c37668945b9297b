// C interface: verifies and compares states.
#include <algorithm>
#include <limits>

#include "src/c/internal.hpp"
#include "stet/session/identity.hpp"
#include "stet/session/splice.hpp"
#include "stet/snapshot/verify.hpp"

namespace stet::c {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// A difference together with its texts.
struct OwnedDifference : stet_difference {
  explicit OwnedDifference(const Difference& d)
      : texts{without_nul(d.text()), without_nul(d.where()), without_nul(d.what),
              without_nul(d.expected), without_nul(d.found)} {
    text = texts[0].c_str();
    where = texts[1].c_str();
    what = texts[2].c_str();
    expected = texts[3].c_str();
    found = texts[4].c_str();
    position = d.position;
    layer = d.layer;
    head = d.head;
    element = d.element;
    expected_number = d.expected_number.value_or(kNotANumber);
    found_number = d.found_number.value_or(kNotANumber);
  }
  std::string texts[5];
};

stet_verify_report report_of(const VerifyReport& r) {
  stet_verify_report report{};
  report.tokens = r.tokens;
  report.blocks = r.blocks;
  report.of = r.of;
  report.by_digests = r.by_digests;
  report.logits = r.logits ? 1 : 0;
  report.whole = r.whole() ? 1 : 0;
  report.position = r.limit ? r.limit->position : -1;
  if (r.limit) r.limit->reason.copy(report.reason, sizeof report.reason - 1);
  return report;
}

}  // namespace

Contract saved_contract(const Snapshot& snapshot) {
  const std::optional<Contract> contract = stet::parse_contract(snapshot.meta().contract);
  return contract.value_or(Contract::f32);  // an unknown contract is refused later
}

stet_difference* new_difference(const std::optional<Difference>& difference) {
  return difference ? new OwnedDifference(*difference) : nullptr;
}

}  // namespace stet::c

using namespace stet::c;

void stet_difference_free(stet_difference* difference) {
  delete static_cast<OwnedDifference*>(difference);
}

stet_status stet_snapshot_verify(const stet_snapshot* snapshot, const stet_model* model,
                                 const stet_session_options* options,
                                 const stet_verify_options* how, stet_verify_report* report,
                                 stet_difference** difference, stet_error** error) {
  return guarded(error, [&] {
    stet_difference*& to = output(difference, "difference");
    if (report != nullptr) checked(report, "report");
    const stet::Snapshot& s = at(snapshot, "snapshot").snapshot;
    const std::shared_ptr<const stet::Model>& m = at(model, "model").model;
    const stet_session_options given = input(options, "options");
    if (given.capacity != 0)
      fail("capacity", "0, which takes the snapshot's", std::to_string(given.capacity));
    if (given.kv_type != 0)
      fail("kv_type", "0, which takes the snapshot's", std::to_string(given.kv_type));
    const uint64_t flags = input(how, "how").flags;
    check_flags(flags, STET_VERIFY_BISECT, "how");
    const stet::SessionOptions o = session_options(options, saved_contract(s));
    s.check_compatible(*m, o.compute.contract);
    const stet::VerifyReport proved = stet::verify(s, m, o, (flags & STET_VERIFY_BISECT) != 0);
    to = new_difference(proved.difference);
    if (report != nullptr) give(report_of(proved), *report);
  });
}

stet_status stet_session_verify(stet_session* session, stet_difference** difference,
                                stet_error** error) {
  return guarded(error, [&] {
    stet_difference*& to = output(difference, "difference");
    to = new_difference(stet::verify(*at(session, "session").at).difference);
  });
}

stet_status stet_session_verify_with_report(stet_session* session, stet_verify_report* report,
                                            stet_difference** difference, stet_error** error) {
  return guarded(error, [&] {
    stet_difference*& to = output(difference, "difference");
    if (report != nullptr) checked(report, "report");
    const stet::VerifyReport proved = stet::verify(*at(session, "session").at);
    to = new_difference(proved.difference);
    if (report != nullptr) give(report_of(proved), *report);
  });
}

stet_status stet_session_first_difference(stet_session* expected, stet_session* found,
                                          double tolerance, stet_difference** difference,
                                          stet_error** error) {
  return guarded(error, [&] {
    stet_difference*& to = output(difference, "difference");
    if (!(tolerance >= 0)) fail("tolerance", "0 or more", std::to_string(tolerance));
    const stet::State& a = at(expected, "expected").at->state();
    const stet::State& b = at(found, "found").at->state();
    to = new_difference(stet::first_difference(a, b, tolerance));
  });
}

// ---------------------------------------------------------------- part by part

struct stet_comparison {
  struct Part {
    std::string name, note;
    std::unique_ptr<OwnedDifference> difference;
    bool compared;
  };

  explicit stet_comparison(stet::Comparison c) : comparison(std::move(c)) {
    for (const stet::Comparison::Part& p : comparison.parts) {
      parts.push_back({without_nul(p.name), without_nul(p.note),
                       p.difference ? std::make_unique<OwnedDifference>(*p.difference) : nullptr,
                       p.compared});
    }
  }

  stet::Comparison comparison;
  std::vector<Part> parts;  // as returned to the caller
};

stet_status stet_session_compare(stet_session* a, stet_session* b, stet_comparison** comparison,
                                 stet_error** error) {
  return guarded(error, [&] {
    stet_comparison*& to = output(comparison, "comparison");
    const stet::State& x = at(a, "a").at->state();
    const stet::State& y = at(b, "b").at->state();
    to = new stet_comparison(stet::compare(x, y));
  });
}

stet_status stet_session_compare_truth(stet_session* session, stet_comparison** comparison,
                                       stet_error** error) {
  return guarded(error, [&] {
    stet_comparison*& to = output(comparison, "comparison");
    stet::Session& s = *at(session, "session").at;
    stet::Session truth = stet::truth_of(s.shared_model(), s.state(),
                                         {s.capacity(), s.kv().shape().type, s.compute()});
    to = new stet_comparison(stet::compare(truth.state(), s.state()));
  });
}

stet_status stet_snapshot_compare(const stet_snapshot* a, const stet_snapshot* b,
                                  stet_comparison** comparison, stet_error** error) {
  return guarded(error, [&] {
    stet_comparison*& to = output(comparison, "comparison");
    const stet::Snapshot& x = at(a, "a").snapshot;
    const stet::Snapshot& y = at(b, "b").snapshot;
    to = new stet_comparison(stet::compare(x, y));
  });
}

void stet_comparison_free(stet_comparison* comparison) { delete comparison; }

stet_status stet_comparison_get_info(const stet_comparison* comparison, stet_comparison_info* info,
                                     stet_error** error) {
  return guarded(error, [&] {
    stet_comparison_info& to = checked(info, "info");
    const stet::Comparison& c = at(comparison, "comparison").comparison;
    stet_comparison_info i{};
    i.parts = c.parts.size();
    i.layers = c.layers.size();
    i.equal = c.equal() ? 1 : 0;
    i.common_tokens = c.common_tokens;
    i.equal_positions = c.equal_positions;
    i.a_from_b = c.a_from_b.value_or(kNotANumber);
    i.b_from_a = c.b_from_a.value_or(kNotANumber);
    give(i, to);
  });
}

stet_status stet_comparison_get_part(const stet_comparison* comparison, size_t index,
                                     stet_comparison_part* part, stet_error** error) {
  return guarded(error, [&] {
    stet_comparison_part& to = checked(part, "part");
    const stet_comparison::Part& p = element(at(comparison, "comparison").parts, index, "index");
    give(stet_comparison_part{0, p.name.c_str(), p.note.c_str(), p.difference.get(),
                              p.compared ? 1 : 0},
         to);
  });
}

stet_status stet_comparison_get_layer(const stet_comparison* comparison, size_t index,
                                      stet_comparison_layer* layer, stet_error** error) {
  return guarded(error, [&] {
    stet_comparison_layer& to = checked(layer, "layer");
    const stet::Comparison::Layer& l =
        element(at(comparison, "comparison").comparison.layers, index, "index");
    give(stet_comparison_layer{0, l.keys.largest, l.keys.rms, l.values.largest, l.values.rms}, to);
  });
}
