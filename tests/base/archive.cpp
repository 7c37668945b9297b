// Models and tokenizers loaded from archives (stet/files/archive.hpp) equal those of the original
// directories. Damaged archives, and wrong ones with correct digests, are refused.
#include "stet/files/file_source.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "stet/files/archive.hpp"
#include "stet/text/tokenizer.hpp"
#include "tests/support/models.hpp"
#include "tests/support/snapshot_image.hpp"

namespace stet::test::archive_tests {
namespace {

using Files = std::vector<std::pair<std::string, std::string>>;

const std::string kPath = "s.stet: WEIGHTS";  // the archive's name in errors

std::shared_ptr<const FileSource> open_archive(std::string_view bytes) {
  return archive_source(as_bytes(bytes), nullptr, kPath);
}

// Writes an archive of the named files of `source`, after `before` bytes of other content.
void write_archive(const FileSource& source, const std::vector<std::string>& names,
                   const std::string& path, size_t before = 0) {
  const ArchiveWriter archive(source, names);
  AtomicFile file(path);
  file.write(as_bytes(std::string(before, 'x')));
  archive.write(file);
  EXPECT_EQ(file.written(), before + archive.size());
  file.commit();
}

std::string archive_of(const Files& files) {
  const TemporaryDirectory dir;
  std::vector<std::string> names;
  for (const auto& [name, text] : files) names.push_back(name);
  write_archive(*memory_source(files, "memory"), names, dir / "archive");
  return read_text(dir / "archive");
}

// Maps the archive at byte `offset` of a file.
std::shared_ptr<const FileSource> map_archive(const std::string& path, size_t offset) {
  const auto file = MappedFile::open(path);
  return archive_source(file->bytes().subspan(offset), nullptr, path + ": WEIGHTS", file);
}

Digest logits_digest(const std::shared_ptr<const Model>& m) {
  Session session(m, options(2));
  const std::vector<float> logits = all_logits(session, random_tokens(*m, 70));
  return digest_of(std::as_bytes(std::span(logits)));
}

// An archive built from the specification, without the library's code. Fields that are set replace
// the correct values.
struct Image {
  struct Entry {
    std::string name, content;
    int64_t offset = -1, size = -1;
  };
  std::vector<Entry> entries;
  int64_t count = -1, index_size = -1, size = -1;
  std::string magic = std::string("\x93STAR\r\n\x1a", 8), extra_index;
  char gap = '\0';

  std::string build() const {
    uint64_t end = 24 + 16 + extra_index.size();
    for (const Entry& e : entries) end += 34 + e.name.size();
    const uint64_t right_index_size = end;
    std::string list, body;
    for (const Entry& e : entries) {
      const uint64_t offset = (end + 4095) / 4096 * 4096;
      body += std::string(offset - end, gap) + e.content;
      end = offset + e.content.size();
      list += le(e.offset < 0 ? offset : e.offset, 8) +
              le(e.size < 0 ? e.content.size() : e.size, 8) + digest_bytes(e.content) +
              le(e.name.size(), 2) + e.name;
    }
    const std::string index = magic + le(index_size < 0 ? right_index_size : index_size, 4) +
                              le(count < 0 ? entries.size() : count, 4) +
                              le(size < 0 ? end : size, 8) + list + extra_index;
    return index + digest_bytes(index) + body;
  }
};

// ---- models and tokenizers ----

class ArchivedModel : public testing::TestWithParam<Subject> {};

TEST_P(ArchivedModel, IsTheModelOfTheDirectory) {
  const TemporaryDirectory dir;
  const std::string path = dir / "archive";
  const auto source = directory_source(GetParam().directory);
  const std::vector<std::string> names = Model::files_of(*source);
  EXPECT_EQ(names, GetParam().name.starts_with("pocket")
                       ? (std::vector<std::string>{"config.json", "generation_config.json",
                                                   "model.safetensors"})
                       : (std::vector<std::string>{"config.json", "model.safetensors"}));
  write_archive(*source, names, path, 8192);

  const auto archived = map_archive(path, 8192);
  EXPECT_EQ(Model::files_of(*archived), names);
  const auto m = Model::load(archived, 2), expected = model(GetParam().directory);
  EXPECT_EQ(m->fingerprints(), expected->fingerprints());
  EXPECT_EQ(m->generation().eos_ids, expected->generation().eos_ids);
  EXPECT_EQ(m->generation().temperature, expected->generation().temperature);
  EXPECT_EQ(m->directory(), path + ": WEIGHTS");
  EXPECT_EQ(logits_digest(m), logits_digest(expected));

  // Writing an archive from an archive gives the same bytes.
  write_archive(m->source(), names, dir / "again", 8192);
  EXPECT_EQ(read_text(dir / "again"), read_text(path));
}

INSTANTIATE_TEST_SUITE_P(Models, ArchivedModel, testing::ValuesIn(subjects()), subject_name);

TEST(ArchivedTokenizer, IsTheTokenizerOfTheDirectory) {
  const TemporaryDirectory dir;
  size_t checked = 0;
  for (const char* name : {"pocket-gemma3", "pocket-llama3"}) {
    const auto source = directory_source(asset_path(name));
    const std::vector<std::string> names = Tokenizer::files_of(*source);
    EXPECT_EQ(names.size(), 2u);
    EXPECT_EQ(names.back(), "tokenizer_config.json");
    write_archive(*source, names, dir / name);
    const auto archived = map_archive(dir / name, 0);
    EXPECT_EQ(Tokenizer::files_of(*archived), names);
    std::shared_ptr<const Tokenizer> expected;
    try {
      expected = Tokenizer::load(asset_path(name));
    } catch (const Error& e) {
      if (e.kind != ErrorKind::unsupported) throw;
      continue;  // its library is not in this build
    }
    const auto tokenizer = Tokenizer::load(*archived);
    EXPECT_EQ(tokenizer->fingerprint(), expected->fingerprint());
    EXPECT_EQ(tokenizer->files(), expected->files());
    EXPECT_EQ(tokenizer->encode("What is k?"), expected->encode("What is k?"));
    write_archive(*memory_source(tokenizer->files(), "memory"), names, dir / "again");
    EXPECT_EQ(read_text(dir / "again"), read_text(dir / name));
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << "built without the libraries of both tokenizers";
}

TEST(Archive, ListsTheFilesThatATokenizerReads) {
  const Files all = {{"chat_template.jinja", "t"},
                     {"tokenizer.json", "{}"},
                     {"tokenizer.model", "m"},
                     {"tokenizer_config.json", "{}"},
                     {"config.json", "{}"}};
  EXPECT_EQ(
      Tokenizer::files_of(*memory_source(all, "memory")),
      (std::vector<std::string>{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}));
  EXPECT_EQ(Tokenizer::files_of(*memory_source({all[2]}, "memory")),
            std::vector<std::string>{"tokenizer.model"});
  EXPECT_EQ(Tokenizer::files_of(*memory_source({}, "memory")), std::vector<std::string>{});
}

// Splits a checkpoint into shards and distributes the tensors among them round-robin.
void write_shards(const std::string& from, const TemporaryDirectory& to, size_t shards) {
  const Golden original(from + "/model.safetensors");
  nlohmann::json weight_map;
  for (size_t s = 0; s < shards; ++s) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards);
    std::vector<TensorSpec> specs;
    for (size_t i = s; i < original.all().size(); i += shards) {
      const TensorView& t = original.all()[i];
      specs.push_back({t.name, t.dtype, t.shape});
      weight_map[t.name] = name;
    }
    SafeTensorsWriter writer(to / name, specs);
    for (size_t i = s; i < original.all().size(); i += shards)
      writer.write(original.all()[i].bytes);
    writer.commit();
  }
  write_file(to / "model.safetensors.index.json",
             nlohmann::json{{"weight_map", weight_map}}.dump());
  write_file(to / "config.json", read_text(from + "/config.json"));
}

TEST(Archive, HoldsAShardedModel) {
  const std::string directory = data_path("models/llama31-tiny");
  const TemporaryDirectory shards, dir;
  write_shards(directory, shards, 3);
  const auto source = directory_source(shards.path());
  const std::vector<std::string> names = Model::files_of(*source);
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors",
                "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"}));
  write_archive(*source, names, dir / "archive");
  const auto m = Model::load(map_archive(dir / "archive", 0), 2);
  EXPECT_EQ(m->fingerprints(), model(directory)->fingerprints());
  EXPECT_EQ(logits_digest(m), logits_digest(model(directory)));

  // An archive that lacks one of the shards is refused.
  write_archive(*source, {names[0], names[1], names[2], names[4]}, dir / "archive");
  EXPECT_EQ(error_of([&] { Model::load(map_archive(dir / "archive", 0), 1); }),
            "format: " + dir / "archive" + ": WEIGHTS: " + names[3] +
                ": expected a file of that name, found none");
}

TEST(Archive, NamesTheMissingFileOfAModel) {
  EXPECT_EQ(error_of([] {
              Model::load(open_archive(archive_of({{"a", "b"}})), 1);
            }),
            "format: s.stet: WEIGHTS: config.json: expected a file of that name, found none");
  const std::string config = read_text(data_path("models/llama31-tiny/config.json"));
  EXPECT_EQ(error_of([&] {
              Model::load(open_archive(archive_of({{"config.json", config}})), 1);
            }),
            "io: s.stet: WEIGHTS: expected model.safetensors or model.safetensors.index.json in "
            "it, found neither");
  EXPECT_EQ(
      error_of([&] {
        Model::load(open_archive(archive_of({{"config.json", config}, {"model.safetensors", ""}})),
                    1);
      }),
      "format: s.stet: WEIGHTS: model.safetensors: expected a file with content, found 0 bytes");
  EXPECT_EQ(error_of([] {
              Model::load(open_archive(archive_of({{"config.json", "{"}})), 1);
            }),
            "format: s.stet: WEIGHTS: config.json: line 1, column 2: expected valid JSON, found "
            "the end of the text");
  EXPECT_EQ(error_of([] {
              Tokenizer::load(*open_archive(archive_of({{"tokenizer_config.json", "{}"}})));
            }),
            "io: s.stet: WEIGHTS: expected tokenizer.json or tokenizer.model, found neither");
}

// ---- the format ----

TEST(Archive, IsAsSpecified) {
  const Files files = {{"config.json", "{}"}, {"empty", ""}, {"weights", std::string(5000, 'w')}};
  Image image;
  for (const auto& [name, text] : files) image.entries.push_back({name, text});
  const std::string bytes = archive_of(files);
  EXPECT_EQ(bytes, image.build());
  EXPECT_EQ(bytes.size(), 8192u + 5000u);  // an empty file takes no page

  const ArchiveIndex index = read_archive_index(as_bytes(bytes), kPath);
  EXPECT_EQ(index.bytes.size(), 24u + 3 * 34 + 11 + 5 + 7 + 16);
  ASSERT_EQ(index.entries.size(), 3u);
  EXPECT_EQ(index.entries[2].name, "weights");
  EXPECT_EQ(index.entries[2].offset, 8192u);
  EXPECT_EQ(index.entries[2].size, 5000u);
  EXPECT_EQ(index.entries[2].digest, digest_of(as_bytes(files[2].second)));
  const ArchiveWriter writer(*open_archive(bytes), {"config.json", "empty", "weights"});
  EXPECT_TRUE(std::equal(writer.index().begin(), writer.index().end(), index.bytes.begin(),
                         index.bytes.end()));

  const auto source = open_archive(bytes);
  for (const auto& [name, text] : files) {
    EXPECT_TRUE(source->has(name));
    EXPECT_EQ(source->read(name, text.size()), text);
    const auto opened = source->open(name);
    EXPECT_EQ(opened->path(), "s.stet: WEIGHTS: " + name);
    EXPECT_EQ(
        std::string(reinterpret_cast<const char*>(opened->bytes().data()), opened->bytes().size()),
        text);
  }
  EXPECT_FALSE(source->has("weight"));
  EXPECT_EQ(error_of([&] { source->open("weight"); }),
            "format: s.stet: WEIGHTS: weight: expected a file of that name, found none");
  EXPECT_EQ(error_of([&] { source->read("weights", 4999); }),
            "format: s.stet: WEIGHTS: weights: expected at most 4999 bytes, found 5000");
}

TEST(Archive, KeepsItsOwner) {
  auto bytes = std::make_shared<const std::string>(archive_of({{"a", std::string(3 << 20, 'a')}}));
  const std::weak_ptr<const std::string> alive = bytes;
  auto source = archive_source(as_bytes(*bytes), bytes, kPath);
  bytes.reset();
  auto file = source->open("a");
  source.reset();
  EXPECT_EQ(file->bytes()[(3 << 20) - 1], std::byte{'a'});
  file->drop(100, 200);  // drop() has no effect on memory
  EXPECT_EQ(file->bytes()[100], std::byte{'a'});
  EXPECT_FALSE(alive.expired());
  file.reset();
  EXPECT_TRUE(alive.expired());
}

// Returns the number of resident pages of a mapping in this process.
size_t resident_pages(std::span<const std::byte> bytes) {
  std::ifstream smaps("/proc/self/smaps");
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(bytes.data()) << '-';
  for (std::string line; std::getline(smaps, line);) {
    if (!line.starts_with(begin.str())) continue;
    while (std::getline(smaps, line)) {
      if (line.starts_with("Rss:")) return std::stoul(line.substr(4)) / 4;
    }
  }
  return SIZE_MAX;
}

TEST(Archive, DropsReadPagesOfAMappedFile) {
  const TemporaryDirectory dir;
  write_archive(*memory_source({{"a", std::string(3 << 20, 'a')}}, "memory"), {"a"},
                dir / "archive");
  const auto mapped = MappedFile::open(dir / "archive");
  const auto source = archive_source(mapped->bytes(), nullptr, kPath, mapped);
  const auto file = source->open("a");  // digested in pieces; each piece is dropped afterwards
  EXPECT_LE(resident_pages(mapped->bytes()), 16u);
  const std::string all(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  EXPECT_EQ(all, std::string(3 << 20, 'a'));
  EXPECT_GE(resident_pages(mapped->bytes()), 3u << 8);
  file->drop(3 << 20, 1);
  file->drop(SIZE_MAX, SIZE_MAX);
  EXPECT_GE(resident_pages(mapped->bytes()), 3u << 8);
  file->drop(1 << 20, 2 << 20);
  EXPECT_LE(resident_pages(mapped->bytes()), (1u << 8) + 17);
}

TEST(ArchiveWriter, RefusesNamesThatTheFormatHasNot) {
  const auto refusal = [](const std::string& name) {
    return error_of([&] { ArchiveWriter(*memory_source({{name, "x"}}, "memory"), {name}); });
  };
  const std::string rule =
      "argument: memory: name of a file: expected the plain name of a file, 1 to 255 bytes";
  EXPECT_EQ(refusal(""), rule);
  EXPECT_EQ(refusal("."), rule + ", found .");
  EXPECT_EQ(refusal(".."), rule + ", found ..");
  EXPECT_EQ(refusal("a/b"), rule + ", found a/b");
  EXPECT_EQ(refusal("a\\b"), rule + ", found a\\b");
  EXPECT_EQ(refusal(std::string("a\0b", 3)), rule + ", found a\\x00b");
  EXPECT_EQ(refusal(std::string(256, 'a')), rule + ", found " + std::string(256, 'a'));
  EXPECT_EQ(refusal(std::string(255, 'a')), "no error");
  const auto source = memory_source({{"a", "x"}}, "memory");
  EXPECT_EQ(error_of([&] {
              ArchiveWriter(*source, {"a", "a"});
            }),
            "argument: memory: a: expected each name once, found a second file");
  EXPECT_EQ(error_of([&] { ArchiveWriter(*source, {}); }),
            "argument: memory: number of files: expected 1 to 4096, found 0");
  EXPECT_EQ(error_of([&] { ArchiveWriter(*source, {"b"}); }),
            "format: memory: b: expected a file of that name, found none");
}

TEST(ArchiveWriter, StartsAtAMultipleOf4096Only) {
  const TemporaryDirectory dir;
  const auto source = memory_source({{"a", "x"}}, "memory");
  EXPECT_EQ(
      error_of([&] { write_archive(*source, {"a"}, dir / "f", 64); }),
      "argument: " + dir / "f" + ": archive: expected a start at a multiple of 4096, found 64");
  EXPECT_EQ(dir.names(), std::vector<std::string>{});
}

TEST(ArchiveWriter, DetectsAFileThatChangedMeanwhile) {
  const TemporaryDirectory dir;
  { std::ofstream(dir / "a") << "before"; }
  const ArchiveWriter archive(*directory_source(dir.path()), {"a"});
  { std::fstream(dir / "a", std::ios::in | std::ios::out) << "behind"; }
  AtomicFile file(dir / "out");
  EXPECT_EQ(error_of([&] { archive.write(file); }),
            "mismatch: " + dir / "a" + ": content: expected digest " +
                digest_text(digest_of(as_bytes("before"))) + " as before, found " +
                digest_text(digest_of(as_bytes("behind"))));
}

// A large file is digested, written, and digested again when read, in pieces that do not stay
// resident.
TEST(ArchiveWriter, HoldsNoFileInMemory) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "the sanitizer keeps four bytes for each that is looked at";
#endif
#endif
  const TemporaryDirectory dir;
  const size_t size = size_t{256} << 20;
  { std::ofstream(dir / "big") << "x"; }
  std::filesystem::resize_file(dir / "big", size);
  const auto peak = [] {
    rusage usage = {};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<size_t>(usage.ru_maxrss) << 10;
  };
  const size_t before = peak();
  write_archive(*directory_source(dir.path()), {"big"}, dir / "archive");
  const auto archived = map_archive(dir / "archive", 0)->open("big");
  EXPECT_EQ(archived->bytes().size(), size);
  EXPECT_LT(peak() - before, size / 4);
}

// ---- damage ----

const Files kSmall = {
    {"config.json", "{}"}, {"generation_config.json", "[]"}, {"weights", "0123456789"}};

// Opens an archive and reads every file of kSmall from it. Returns the first error.
std::string reading(std::string_view bytes) {
  return error_of([&] {
    const std::vector<std::byte> copy(as_bytes(bytes).begin(),
                                      as_bytes(bytes).end());  // a copy, so that ASan sees its end
    const auto source = archive_source(copy, nullptr, kPath);
    for (const auto& [name, text] : kSmall) {
      source->read(name, 100);
      source->open(name);
    }
  });
}

TEST(DamagedArchive, EveryTruncationIsAnError) {
  const std::string bytes = archive_of(kSmall);
  ASSERT_EQ(reading(bytes), "no error");
  EXPECT_EQ(reading(""),
            "format: s.stet: WEIGHTS: magic: expected an archive of files, found 0 bytes");
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string error = reading(std::string_view(bytes).substr(0, size));
    ASSERT_TRUE(error.starts_with("format: s.stet: WEIGHTS: ")) << size << ": " << error;
  }
  const std::string size =
      fmt::format("format: s.stet: WEIGHTS: archive size: expected {}, found ", bytes.size());
  EXPECT_EQ(reading(bytes.substr(0, bytes.size() - 1)), size + std::to_string(bytes.size() - 1));
  EXPECT_EQ(reading(bytes + "x"), size + std::to_string(bytes.size() + 1));
}

TEST(DamagedArchive, EveryFlippedBitIsAnError) {
  const std::string bytes = archive_of(kSmall);
  const size_t index = read_archive_index(as_bytes(bytes), kPath).bytes.size();
  for (size_t bit = 0; bit < 8 * bytes.size();
       bit += bit < 8 * index ? 1 : 7) {  // all bits of the index, samples elsewhere
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    const std::string error = reading(damaged);
    ASSERT_TRUE(error.starts_with("format: s.stet: WEIGHTS: ")) << bit << ": " << error;
  }
}

TEST(DamagedArchive, NamesTheFileThatIsDamaged) {
  std::string bytes = archive_of(kSmall);
  bytes.back() = '8';
  const auto source = open_archive(bytes);  // the index is undamaged
  EXPECT_EQ(source->read("config.json", 100), "{}");
  const std::string error =
      fmt::format("format: s.stet: WEIGHTS: weights: content: expected digest {}, found {}",
                  digest_text(digest_of(as_bytes("0123456789"))),
                  digest_text(digest_of(as_bytes("0123456788"))));
  EXPECT_EQ(error_of([&] { source->open("weights"); }), error);
  EXPECT_EQ(error_of([&] { source->read("weights", 100); }), error);
}

// Wrong fields are refused even if the digests are correct.
TEST(DamagedArchive, WrongFieldsUnderARightDigest) {
  const auto refusal = [](const std::function<void(Image&)>& change) {
    Image image;
    image.entries = {{"a", "aa"}, {"b", "bb"}};
    change(image);
    const std::string error = error_of([&] { open_archive(image.build()); });
    const std::string prefix = "format: s.stet: WEIGHTS: ";
    return error.starts_with(prefix) ? error.substr(prefix.size()) : error;
  };
  EXPECT_EQ(refusal([](Image&) {}), "no error");
  EXPECT_EQ(refusal([](Image& i) { i.magic = "SAFETENS"; }),
            "magic: expected an archive of files, found other bytes");
  EXPECT_EQ(refusal([](Image& i) { i.index_size = 39; }),
            "index size: expected 40 up to the archive's 8194 bytes, found 39");
  EXPECT_EQ(refusal([](Image& i) { i.index_size = 0xFFFFFFFF; }),
            "index size: expected 40 up to the archive's 8194 bytes, found 4294967295");
  EXPECT_EQ(refusal([](Image& i) { i.count = 0; }), "number of files: expected 1 to 4096, found 0");
  EXPECT_EQ(refusal([](Image& i) { i.count = 0xFFFFFFFF; }),
            "number of files: expected 1 to 4096, found 4294967295");
  EXPECT_EQ(refusal([](Image& i) { i.count = 1; }),
            "index: expected the end at offset 59, found 35 more bytes");
  EXPECT_EQ(refusal([](Image& i) { i.count = 3; }),
            "offset of a file: expected 8 bytes at offset 94, found 0 before the end");
  EXPECT_EQ(refusal([](Image& i) { i.extra_index = "x"; }),
            "index: expected the end at offset 94, found 1 more byte");
  EXPECT_EQ(refusal([](Image& i) { i.size = INT64_MAX; }),
            "archive size: expected 9223372036854775807, found 8194");
  EXPECT_EQ(refusal([](Image& i) { i.entries[1].offset = 4096; }),
            "b: expected to begin at 8192, found 4096");
  EXPECT_EQ(refusal([](Image& i) { i.entries[1].offset = INT64_MAX; }),
            "b: expected to begin at 8192, found 9223372036854775807");
  EXPECT_EQ(refusal([](Image& i) { i.entries[1].size = 3; }),
            "b: expected a file within the archive's 8194 bytes, found 3 at 8192");
  EXPECT_EQ(
      refusal([](Image& i) { i.entries[0].size = INT64_MAX; }),
      "a: expected a file within the archive's 8194 bytes, found 9223372036854775807 at 4096");
  EXPECT_EQ(refusal([](Image& i) { i.entries[0].size = 4097; }),
            "b: expected to begin at 12288, found 8192");
  EXPECT_EQ(refusal([](Image& i) { i.entries[1].size = 1; }),
            "archive size: expected 8193, the end of the last file, found 8194");
  EXPECT_EQ(refusal([](Image& i) { i.gap = 'z'; }),
            "bytes before a: expected zero bytes, found 122");
  EXPECT_EQ(refusal([](Image& i) { i.entries[1].name = "a"; }),
            "a: expected each name once, found a second file");
  const std::string rule =
      "name of a file: expected the plain name of a file, 1 to 255 bytes, found ";
  EXPECT_EQ(refusal([](Image& i) { i.entries[1].name = ""; }), rule + "nothing");
  EXPECT_EQ(refusal([](Image& i) { i.entries[1].name = ".."; }), rule + "..");
  EXPECT_EQ(refusal([](Image& i) { i.entries[1].name = "../b"; }), rule + "../b");
  EXPECT_EQ(refusal([](Image& i) { i.entries[1].name = std::string("b\0", 2); }), rule + "b\\x00");
  EXPECT_EQ(refusal([](Image& i) { i.entries[1].name = std::string(256, 'b'); }),
            rule + std::string(256, 'b'));
}

}  // namespace
}  // namespace stet::test::archive_tests
