// Files: saved in every form, converted, restored by one or by many, and damaged while they are in
// use.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "stet/snapshot/verify.hpp"
#include "tests/session/schedules/world.hpp"
#include "tests/support/files.hpp"

namespace stet::test {
namespace {

std::string save_code(const SaveOptions& o, int parent) {
  return fmt::format(
      "SaveOptions how; how.form = SnapshotForm::{}; how.compress = {}; how.threads = 1; {}{}",
      snapshot_form_name(o.form), o.compress,
      parent < 0
          ? ""
          : fmt::format("const auto parent = Snapshot::open(\"{}.stet\"); how.parent = &parent; ",
                        parent),
      o.weights_files == nullptr
          ? ""
          : "const auto weights = directory_source(MODEL); how.weights_files = weights.get(); ");
}

// Returns the offset and size of a section; 0 and 0 if there is none.
std::pair<size_t, size_t> section_of(const std::string& path, const std::string& name) {
  const Snapshot snapshot = Snapshot::open(path);
  for (const Snapshot::Section& s : snapshot.sections()) {
    if (s.name == name) return {s.offset, s.size};
  }
  return {};
}

}  // namespace

// Chooses a form by `step`. A delta needs a parent whose blocks have the same shape.
SaveOptions World::draw_form(const Step& step, const KvShape& shape,
                             std::optional<Snapshot>* parent, int* parent_file) {
  SaveOptions how;
  how.threads = 1;
  how.compress = have_zlib() && step.x % 4 == 0 ? 1 + static_cast<int>(step.y % 9) : 0;
  const uint32_t kind = step.x / 4 % 4;
  if (kind == 1) how.form = SnapshotForm::recipe;
  if (kind >= 2 && !files_.empty()) {
    const int at = file(step.y);
    if (files_[static_cast<size_t>(at)].form == SnapshotForm::recipe || !sound(at)) return how;
    Snapshot chosen = Snapshot::open(files_[static_cast<size_t>(at)].path);
    if (!(chosen.meta().kv == shape)) return how;
    *parent = std::move(chosen);
    *parent_file = at;
    how.form = SnapshotForm::delta;
    how.parent = &**parent;
  }
  return how;
}

void World::save(Live& live, const Step& step) {
  std::optional<Snapshot> parent;
  int parent_file = -1;
  SaveOptions how = draw_form(step, live.session.kv().shape(), &parent, &parent_file);
  const bool edited = live.timeline.edited();
  if (edited && how.form == SnapshotForm::recipe) how.form = SnapshotForm::full;
  std::shared_ptr<const FileSource> weights;
  if (step.y % 64 == 63)
    how.weights_files = (weights = directory_source(shared_.subject.directory)).get();
  const std::string path = fmt::format("{}/{}.stet", directory_.path(), files_.size());
  say(fmt::format("{{ {}Snapshot::save(s{}, \"{}.stet\", how); }}", save_code(how, parent_file),
                  live.number, files_.size()));
  const StateDigests saved = Snapshot::save(live.session, path, how);
  files_.push_back({path, live.timeline, how.form, parent_file, true, !edited});
  prove(files_.back());
  if (saved.state != shared_.oracle.truth(live.timeline).state)
    culprit_ = &live, fail(fmt::format("s{}: another state was saved", live.number));
}

// An undamaged file shows no difference, and all of it is verified if its tokens reproduce it.
void World::prove(const File& file) {
  const VerifyReport report = verify(Snapshot::open(file.path), shared_.model, shared_.options,
                                     file.timeline.size() % 2 == 0);
  if (report) fail(file.path + ": verify: " + report.text());
  if (!file.timeline.edited() && !report.whole())
    fail(file.path + ": verify proves less than all: " + report.text());
}

void World::convert(const Step& step) {
  if (files_.empty()) return;
  const int from = file(step.who);
  const File source = files_[static_cast<size_t>(from)];
  if (source.form == SnapshotForm::recipe || !sound(from)) return;
  std::optional<Snapshot> parent;
  int parent_file = -1;
  SaveOptions how = draw_form(step, Snapshot::open(source.path).meta().kv, &parent, &parent_file);
  const bool edited = source.timeline.edited();
  if (edited && how.form == SnapshotForm::recipe) how.form = SnapshotForm::full;
  const std::string path = fmt::format("{}/{}.stet", directory_.path(), files_.size());
  say(
      fmt::format("{{ {}const auto from = Snapshot::open(\"{}.stet\"); "
                  "Snapshot::save(from.state(), from, \"{}.stet\", how); }}",
                  save_code(how, parent_file), from, files_.size()));
  const Snapshot opened = Snapshot::open(source.path);
  const StateDigests saved = Snapshot::save(opened.state(), opened, path, how);
  files_.push_back({path, source.timeline, how.form, parent_file, true, !edited});
  if (saved.state != shared_.oracle.truth(source.timeline).state)
    fail(fmt::format("{}.stet: converted into another state", from));
}

// An undamaged file is restored. A damaged one heals, is refused, or is unharmed where it matters.
// A wrong state never results.
void World::restore(const Step& step) {
  if (files_.empty()) return;
  const int at = file(step.who);
  const File& from = files_[static_cast<size_t>(at)];
  RestoreOptions how;
  how.session = options_;
  how.map = step.x % 3 != 0 && !from.timeline.edited();
  how.check = step.x / 3 % 3 == 0;
  how.heal = step.x / 9 % 2 == 0;
  const std::string call = fmt::format(
      "Snapshot::open(\"{}.stet\").restore(m, {{.session = o, .map = {}, .check = {}, .heal = "
      "{}}})",
      at, how.map, how.check, how.heal);
  const bool must = sound(at) || (how.heal && heals(at));
  if (step.y % 2 == 0 && has_windows())
    how.session.window = {true, 0, [](int64_t) {}};  // windows do not change bits
  try {
    Session session = Snapshot::open(from.path).restore(shared_.model, how);
    say(fmt::format("Session s{} = {};", numbers_, call));
    Timeline timeline = from.timeline;
    if (timeline.calls()) timeline.call(false);  // no file holds callbacks
    add(std::move(session), timeline);
  } catch (const Error& e) {
    say(fmt::format("try {{ {}; return 2; }} catch (const Error&) {{}}", call));
    if (must) fail(std::string("refused: ") + e.what());
  }
}

void World::restore_by_threads(const Step& step) {
  if (files_.empty()) return;
  const int at = file(step.who);
  if (!sound(at)) return;
  const File& from = files_[static_cast<size_t>(at)];
  say(fmt::format(
      "{{ const auto one = Snapshot::open(\"{}.stet\"); std::vector<std::thread> "
      "threads; for (int i = 0; i < 3; ++i) "
      "threads.emplace_back([&, i] {{ one.restore(m, {{.session = o, .map = i % 2 == 0}}); "
      "}}); for (auto& t : threads) t.join(); }}",
      at));
  const Snapshot one = Snapshot::open(from.path);
  std::vector<Truth> found(3);
  std::vector<std::string> errors(found.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        Session session = one.restore(
            shared_.model, {.session = options_, .map = i % 2 == 0 && !from.timeline.edited()});
        found[i] = truth_of(session);
      } catch (const std::exception& e) {
        errors[i] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (size_t i = 0; i < found.size(); ++i) {
    const Truth& expected = shared_.oracle.truth(from.timeline);
    if (found[i].kv == Digest{}) found[i].kv = expected.kv;
    if (!errors[i].empty())
      fail("a thread of several: " + errors[i]);
    else if (!(found[i] == expected))
      fail("a thread of several restored another state");
  }
}

// Sessions that map a damaged file continue as if nothing had happened.
void World::harm(const Step& step) {
  if (files_.empty()) return;
  const int at = file(step.who);
  File& f = files_[static_cast<size_t>(at)];
  const std::string name = fmt::format("{}.stet", at);
  const auto size = static_cast<size_t>(std::filesystem::file_size(f.path));
  for (Live& l : live_) l.looked_at = false;
  if (step.action == Action::touch) {
    say(fmt::format(
        "std::filesystem::last_write_time(\"{}\", std::filesystem::file_time_type::clock::now());",
        name));
    ::utimensat(AT_FDCWD, f.path.c_str(), nullptr, 0);
    return;
  }
  if (step.action == Action::replace) {
    say(fmt::format(
        "std::filesystem::remove(\"{0}\"), std::ofstream(\"{0}\") << \"something else\";", name));
    write_file(f.path, "something else");
    f.sound = f.heals = false;
    return;
  }
  if (step.action == Action::cut_off) {
    const size_t to = step.x % 4 == 0 ? 0 : size * (step.y % 100) / 100;
    say(fmt::format("std::filesystem::resize_file(\"{}\", {});", name, to));
    std::filesystem::resize_file(f.path, to);
    f.sound = f.heals = f.sound && to == size;
    return;
  }
  if (!f.sound) return;
  const bool arrays = step.action == Action::damage_arrays;
  const std::pair<size_t, size_t> of = section_of(f.path, !arrays           ? "KV"
                                                          : step.x % 2 == 0 ? "STATE"
                                                                            : "ANCHORS");
  if (of.second == 0) return;
  const size_t count = step.action == Action::damage ? 1 : 1 + step.y % 3;
  for (size_t i = 0; i < count; ++i) {
    const size_t to = of.first + (step.x * 7919 + i * 104729) % of.second;
    std::fstream bytes(f.path, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(to));
    const char changed = static_cast<char>(bytes.get() ^ (1 << step.y % 8));
    bytes.seekp(static_cast<std::streamoff>(to));
    bytes.put(changed);
    say(fmt::format("put(\"{}\", {}, {});", name, to, int{changed}));
  }
  f.sound = false;
  if (arrays) f.heals = false;  // the damage may be in an index, which cannot heal
}

}  // namespace stet::test
