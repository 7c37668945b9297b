// A mapped file of packed weights is overwritten, truncated or touched while its model runs. The
// result is the right bits or an error; SIGBUS never ends the process.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "src/checkpoint/packed.hpp"
#include "stet/checkpoint/packed.hpp"
#include "tests/support/models.hpp"

namespace stet::test::weight_guard_tests {
namespace {

namespace fs = std::filesystem;

class WeightGuard : public testing::TestWithParam<Contract> {
 protected:
  void SetUp() override { pack_checkpoint(*directory_source(source), GetParam(), directory); }

  Session session(const std::shared_ptr<const Model>& m, size_t tokens = 70) const {
    Session s(m, options(2, STET_DEFAULT_ISA, 512, GetParam()));
    s.append(std::span(ids).first(tokens));
    return s;
  }
  std::shared_ptr<const Model> load(bool map = true) const {
    return Model::load(directory_source(directory, map), 2, GetParam());
  }
  // Returns the file offset of the first byte of the last matrix, and the matrix's name.
  off_t in_a_matrix(std::string* name) const {
    const Checkpoint checkpoint = Checkpoint::open(directory);
    const std::byte* const begin = checkpoint.files().front()->bytes().data();
    off_t at = 0;
    for (const std::string& n : checkpoint.names()) {
      const TensorView* view = checkpoint.find(n);
      if (view->dtype != DType::u8 || view->bytes.data() - begin <= at) continue;
      at = view->bytes.data() - begin;
      *name = n;
    }
    return at;
  }
  void overwrite(off_t at, const std::string& bytes) const {
    const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(::pwrite(fd, bytes.data(), bytes.size(), at), static_cast<ssize_t>(bytes.size()));
    ::close(fd);
  }

  const std::string source = data_path("models/llama31-tiny");
  TemporaryDirectory scratch;
  const std::string directory = scratch / "packed", file = directory + "/" + kPackedName;
  const std::vector<int32_t> ids = random_tokens(*model(source), 200);
};
INSTANTIATE_TEST_SUITE_P(Contracts, WeightGuard,
                         testing::Values(Contract::f32, Contract::q8, Contract::q4),
                         [](const auto& info) { return contract_name(info.param); });

TEST_P(WeightGuard, BytesDecideNotTimes) {
  Session s = session(load()), plain = session(load(false));
  const std::string all = read_text(file);
  const std::function<void()> changes[] = {
      [&] { ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), nullptr, 0), 0); },
      [&] { ASSERT_EQ(::chmod(file.c_str(), 0400), 0); }, [&] { overwrite(0, all); },
      [&] { ASSERT_TRUE(fs::remove(file)); }};
  for (size_t i = 0; i < std::size(changes); ++i) {
    changes[i]();
    for (Session* one : {&s, &plain}) one->append({&ids[70 + i], 1});
    EXPECT_TRUE(same_state(s, plain)) << i;
  }
}

TEST_P(WeightGuard, OtherBytesAreAnErrorThatChangesNothing) {
  std::string name;
  const off_t at = in_a_matrix(&name);
  const auto m = load();
  Session s = session(m), other = session(m, 30), plain = session(load(false));
  const std::vector<float> logits(s.logits().begin(), s.logits().end());
  overwrite(at, "changed!");
  const std::string error = error_of([&] { s.append({&ids[70], 1}); });
  EXPECT_TRUE(error.starts_with("format: " + file + ": " + name + ": expected xxh3:")) << error;
  EXPECT_EQ(s.size(), 70);
  EXPECT_TRUE(same_bytes(s.logits(), logits));
  EXPECT_TRUE(same_state(s, plain));
  const BatchEntry batch[] = {{&other, {&ids[30], 1}}, {&s, {&ids[70], 1}}};
  EXPECT_NE(error_of([&] { append(batch); }), "no error");
  EXPECT_EQ(other.size(), 30);
  EXPECT_EQ(s.size(), 70);
  EXPECT_NE(error_of([&] { s.rewind(60), s.logits(); }), "no error");
  EXPECT_NE(error_of([&] { check_packed(*directory_source(directory)); }), "no error");
}

TEST_P(WeightGuard, ATruncatedFileEndsNoProcess) {
  for (const size_t left : {size_t{0}, size_t{4096}, fs::file_size(file) / 2}) {
    const std::string all = read_text(file);
    Session s = session(load()), plain = session(load(false));
    fs::resize_file(file, left);
    const std::string error = error_of([&] { s.append({&ids[70], 1}); });
    EXPECT_TRUE(error.starts_with("format: " + file + ": ")) << error;
    EXPECT_TRUE(same_state(s, plain));
    // The mapped content is lost for good. A newly loaded model continues.
    write_file(file, all);
    EXPECT_NE(error_of([&] { s.append({&ids[70], 1}); }), "no error");
    Session again(load(), s.state(), options(2, STET_DEFAULT_ISA, 512, GetParam()));
    again.append({&ids[70], 1});
    plain.append({&ids[70], 1});
    EXPECT_TRUE(same_state(again, plain));
  }
}

TEST_P(WeightGuard, WeightsInMemoryAreUnaffected) {
  Session s = session(load(false)),
          copied = session(Model::load(in_memory(directory_source(directory)), 2, GetParam())),
          plain = session(load());
  plain.append(std::span(ids).subspan(70, 9));
  fs::resize_file(file, 100);
  for (Session* one : {&s, &copied}) {
    one->append(std::span(ids).subspan(70, 9));
    EXPECT_EQ(one->tokens(), plain.tokens());
    EXPECT_TRUE(same_bytes(one->logits(), plain.logits()));
  }
}

// A checkpoint whose files are written to while a model is loaded from them.
class Restless : public FileSource {
 public:
  explicit Restless(const std::string& directory)
      : FileSource(directory, directory + "/"), files_(directory_source(directory)) {}
  bool has(const std::string& name) const override { return files_->has(name); }
  std::string read(const std::string& name, size_t limit) const override {
    return files_->read(name, limit);
  }
  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    auto opened = files_->open(name);
    const int fd = ::open(path_of(name).c_str(), O_WRONLY | O_CLOEXEC);
    char last = static_cast<char>(opened->bytes().back());
    EXPECT_EQ(::pwrite(fd, &last, 1, static_cast<off_t>(opened->bytes().size()) - 1), 1);
    ::close(fd);
    return opened;
  }

 private:
  std::shared_ptr<const FileSource> files_;
};

// A source of files that opens none.
class Closed : public FileSource {
 public:
  explicit Closed(const std::string& directory)
      : FileSource("closed", "closed: "), files_(directory_source(directory)) {}
  bool has(const std::string& name) const override { return files_->has(name); }
  std::string read(const std::string& name, size_t limit) const override {
    return files_->read(name, limit);
  }
  std::shared_ptr<const FileBytes> open(const std::string&) const override { return nullptr; }

 private:
  std::shared_ptr<const FileSource> files_;
};

TEST(Loading, ASourceThatReturnsNullIsAnError) {
  const auto source = std::make_shared<const Closed>(data_path("models/llama31-tiny"));
  for (const auto& files : {std::shared_ptr<const FileSource>(source), in_memory(source)})
    EXPECT_EQ(error_of([&] { Model::load(files); }),
              "io: closed: model.safetensors: expected a file or an Error from its source, found "
              "null");
}

TEST(Loading, AFileWrittenToMeanwhileIsAnError) {
  const TemporaryDirectory scratch;
  fs::copy(data_path("models/llama31-tiny"), scratch / "m");
  EXPECT_EQ(error_of([&] { Model::load(std::make_shared<const Restless>(scratch / "m")); }),
            "io: " + scratch / "m/model.safetensors" +
                ": the file changed while it was in use: it was written to");
}

}  // namespace
}  // namespace stet::test::weight_guard_tests
