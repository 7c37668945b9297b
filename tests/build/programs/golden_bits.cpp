// Prints digests of all logits, of the KV cache and of recurrent arrays after a prompt, as `stet
// logits --digest` does. It serves builds whose bits alone are tested.
//   golden_bits DIRECTORY CONTRACT IDS [KV_TYPE]
// IDS is a file with a JSON array of token ids. KV_TYPE is f32 unless it is given.
#include <cstdio>
#include <exception>
#include <span>
#include <string>

#include "stet/base/digest.hpp"
#include "stet/base/json_reader.hpp"
#include "stet/files/file.hpp"
#include "stet/files/file_source.hpp"
#include "stet/session/session.hpp"

namespace {

void print_digests(const std::string& directory, const std::string& contract,
                   const std::string& ids_file, const std::string& kv_type) {
  using namespace stet;
  const std::string list = "{\"ids\":" + read_text_file(ids_file, size_t{1} << 20) + "}";
  const std::vector<int64_t> given = parse_json(list, ids_file).integers("ids", 0, INT32_MAX);
  const std::vector<int32_t> ids(given.begin(), given.end());
  SessionOptions options;
  options.kv_type = parse_kv_type(kv_type).value();
  options.compute.contract = parse_contract(contract).value();
  Session session(Model::load(directory_source(directory), 0, options.compute.contract), options);
  RunningDigest logits, kv;
  session.append(ids, [&](int64_t, Rows rows) {
    for (size_t i = 0; i < rows.count; ++i)
      logits.add(std::as_bytes(std::span(rows.row(i), rows.width)));
  });
  for (int64_t b = 0; b < session.kv().blocks(); ++b)
    kv.add({session.kv().block(b), session.kv().shape().block_bytes()});
  std::printf("logits %s\nkv %s\n", digest_text(logits.result()).c_str(),
              digest_text(kv.result()).c_str());
  const std::span<const float> arrays = session.state().recurrent.numbers();
  if (!arrays.empty())
    std::printf("recurrent %s\n", digest_text(digest_of(std::as_bytes(arrays))).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 4 && argc != 5)
      throw std::runtime_error("golden_bits: expected DIRECTORY CONTRACT IDS.json [KV]");
    print_digests(argv[1], argv[2], argv[3], argc == 5 ? argv[4] : "f32");
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
