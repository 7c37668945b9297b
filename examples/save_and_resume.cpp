#include <cstdio>
#include "stet/generate/generate.hpp"
#include "stet/snapshot/snapshot.hpp"

int main(int, char** argv) {  // a checkpoint directory, a file for the state
  const std::string directory = argv[1], file = argv[2];
  const auto model = stet::Model::load(directory);
  stet::Session session(model);
  session.append(std::vector<int32_t>{2, 5, 382, 298, 16});
  stet::Snapshot::save(session, file);
  stet::Session resumed = stet::Snapshot::open(file).restore(model);
  const stet::Reply a = stet::generate(session, nullptr, {.max_tokens = 8}),
                    b = stet::generate(resumed, nullptr, {.max_tokens = 8});
  std::puts(a.ids == b.ids && stet::digests_of(session).state == stet::digests_of(resumed).state
                ? "equal"
                : "different");
}
