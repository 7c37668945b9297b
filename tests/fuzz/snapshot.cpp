// Opens and restores a snapshot, and uses it in every other way.
#include "stet/snapshot/snapshot.hpp"

#include "stet/generate/generate.hpp"
#include "tests/fuzz/forged_snapshot.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/snapshot/use_snapshot.hpp"

using namespace stet;

namespace {

void use_restored(const Snapshot& snapshot) {
  SessionOptions one_thread;
  one_thread.compute.threads = 1;
  Session session = snapshot.restore(fuzz::model(), {.session = one_thread});
  const StateDigests found = digests_of(session), saved = snapshot.digests();
  fuzz::must(found.kv == saved.kv && found.logits == saved.logits && found.state == saved.state,
             "the state that was saved");
  GenerateOptions two;
  two.max_tokens = 2;
  two.ignore_eos = true;
  if (session.size() > 0) generate(session, &fuzz::tokenizer(), two);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const fuzz::MemoryFile memory(fuzz::text_of(data, size));
  return fuzz::read_and_use([&] {
    Snapshot snapshot = Snapshot::open(memory.path());
    fuzz::must(snapshot.file_size() == size, "all of the file");
    fuzz::must(snapshot.tokens().size() == static_cast<size_t>(snapshot.meta().positions),
               "a token per position");
    fuzz::touch(std::as_bytes(std::span(snapshot.logits())));
    for (const Snapshot::Section& s : snapshot.sections())
      fuzz::must(s.offset + s.size <= size, "sections of the file");
    std::optional<std::string> parent;
    if (snapshot.meta().form == SnapshotForm::delta) parent = fuzz::parent_path();
    for (const auto& [way, error] :
         test::use_in_every_way(memory.path(), fuzz::scratch_path(), fuzz::model(), parent)) {
      fuzz::must(error.find('\n') == std::string::npos, "an error is one line");
    }
    snapshot.find_parents(parent);
    use_restored(snapshot);
  });
}
