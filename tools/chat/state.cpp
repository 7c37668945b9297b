// The texts of /state, /messages and /verify.
#include <fmt/format.h>

#include <algorithm>

#include "stet/base/error.hpp"
#include "stet/snapshot/verify.hpp"
#include "tools/chat/chat.hpp"

namespace stet::tool {

namespace {

// Returns "2 kv heads of 16", or "1 .. 2 kv heads of 16 .. 32 in 4 of 6 layers" if layers differ.
std::string kv_heads_text(const KvShape& kv) {
  if (kv.is_uniform()) return fmt::format("{} kv heads of {}", kv.kv_heads, kv.head_dim);
  std::vector<int64_t> heads, dims;
  for (int64_t l = 0; l < kv.layers; ++l) {
    if (!kv.owns(l)) continue;
    heads.push_back(kv.layer(l).kv_heads);
    dims.push_back(kv.layer(l).key_dim);
  }
  if (heads.empty()) return "no kv heads";
  const auto range = [](const std::vector<int64_t>& all) {
    const auto [least, most] = std::minmax_element(all.begin(), all.end());
    return *least == *most ? std::to_string(*least) : fmt::format("{} .. {}", *least, *most);
  };
  return fmt::format("{} kv heads of {} in {} of {} layers", range(heads), range(dims),
                     heads.size(), kv.layers);
}

}  // namespace

std::string state_text(Session& session, const ModelOptions& model) {
  const ModelConfig& config = session.model().config();
  const KvShape& kv = session.kv().shape();
  std::string text =
      fmt::format("model        {}: {}, {} layers, {}\n",
                  printable(model.checkpoint.named ? model.checkpoint.directory
                                                   : checkpoint_name(session.model().directory())),
                  config.architecture, kv.layers, kv_heads_text(kv));
  text += fmt::format("tokens       {} of {}, {} messages\n", session.size(), session.capacity(),
                      session.chat().messages.size());
  text += fmt::format("cache        {} in {}, {} of {} positions visible\n", kv_type_name(kv.type),
                      bytes_text(static_cast<double>(kv.block_bytes()) *
                                 static_cast<double>(session.kv().blocks())),
                      visible_positions(session.kv()), session.size());
  const int64_t window =
      config.window.empty() ? 0 : *std::max_element(config.window.begin(), config.window.end());
  if (window > 0) {
    const auto sliding =
        std::count_if(config.window.begin(), config.window.end(), [](int64_t w) { return w > 0; });
    text += fmt::format(
        "window       {} positions in {} of {} layers{}\n", window, sliding, config.layers,
        session.size() > window
            ? fmt::format("; positions before {} are out of their sight", session.size() - window)
            : "");
  }
  if (!session.prunes().empty()) {
    text += fmt::format("pruned       {} times; rewinding is possible down to {}\n",
                        session.prunes().size(), session.prunes().back().left());
  }
  const StateDigests d = digests_of(session);
  text += fmt::format("contract     {} version {}\n",
                      contract_name(session.model(), session.compute().contract), kContractVersion);
  for (const auto& [name, digest] :
       {std::pair{"tokens", d.tokens}, {"logits", d.logits}, {"kv", d.kv}, {"state", d.state}}) {
    text += fmt::format("{:<12} {}\n", name, digest_text(digest));
  }
  text += "id           " + sha256_text(d.id) + "\n";
  return text;
}

std::string messages_text(const std::vector<Message>& messages) {
  std::string text;
  for (const Message& m : messages) {
    text += m.role + ": ";
    // Further lines are indented, so that none looks like the beginning of another message.
    for (const char c : m.content) text += c == '\n' ? std::string("\n  ") : std::string(1, c);
    text += '\n';
  }
  return text;
}

std::string verify_live_state(Session& session, const Progress& progress) {
  const double start = seconds();
  const VerifyReport report = verify(session, progress);
  if (report) throw Error(ErrorKind::mismatch, "", "verify", report->text(), "the live state");
  const std::string took = fmt::format("{} tokens computed again in {:.0f} ms", report.tokens,
                                       (seconds() - start) * 1e3);
  if (!report.whole()) return fmt::format("{}: {}\n", took, report.text());
  return fmt::format("equal{}: {}, every byte of keys, values and logits compared\n",
                     report.tolerance > 0 ? " within the tolerance of f32-blas" : "", took);
}

}  // namespace stet::tool
