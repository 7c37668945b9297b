// Sessions and files on which a schedule runs, with the reference for each.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "stet/store/store.hpp"
#include "tests/session/schedules/oracle.hpp"
#include "tests/session/schedules/steps.hpp"
#include "tests/support/files.hpp"

namespace stet::test {

// Objects that all schedules of one checkpoint share.
struct Subjects {
  Subject subject;
  std::shared_ptr<const Model> model;
  SessionOptions options;
  Oracle oracle;

  Names& names;

  Subjects(const Subject& s, KvType kv_type, Names& all_names);
};

// A deliberate fault in the reference, to test that faults are found and shrunk.
enum class PlantedFault { none, rewind_to_a_border_keeps_a_token };

class World {
 public:
  explicit World(Subjects& shared, PlantedFault planted = PlantedFault::none,
                 int64_t anchor_bytes = Anchors::kDefaultBytes);

  // Runs the steps. Returns the first difference, or "".
  std::string run(const Steps& steps);
  // Returns the calls of the last run as a program.
  std::string program() const;

 private:
  struct Live {
    Session session;
    Timeline timeline;
    int number;
    bool looked_at = true;  // compared since it changed
  };
  struct Stored {
    Sha256 place;
    Timeline timeline;
  };
  struct File {
    std::string path;
    Timeline timeline;
    SnapshotForm form;
    int parent = -1;    // a delta's parent file
    bool sound = true;  // its bytes are those that were saved
    bool heals = true;  // only keys and values are damaged
  };

  void take(const Step& step);
  void append(Live& live, const Step& step);
  void append_drafted(Live& live, const std::vector<int32_t>& ids, const Step& step);
  void append_refused(Live& live, const Step& step);
  void rewind(Live& live, const Step& step);
  void fork(const Live& live);
  void prune(Live& live, const Step& step);
  void prune_anew(Live& live, const Step& step);
  void keep_anchor(Live& live, const Step& step);
  void set_array(Live& live, const Step& step);
  void change_state(Live& live, const Step& step);
  void put(Live& live);
  void fetch(const Step& step);
  void fetch_prefix(const Live& live);
  bool recurrent() const { return !shared_.model->config().recurrent_of.empty(); }
  bool rewind_as_announced(Live& live, int64_t to);
  std::optional<int64_t> expected_cost(const Live& live, int64_t to) const;
  void attach(Live& live, const Step& step);
  void callback(Live& live, const Step& step);
  void edit(Live& live, const Step& step);
  void round(Live& live, const Step& step);
  void splice(Live& live, const Step& step);
  void windows(Live& live);
  bool has_windows() const;
  void batch(const Step& step);
  void batch_refused(const Step& step);
  void set_compute(Live& live, const Step& step);
  void save(Live& live, const Step& step);
  void restore(const Step& step);
  void restore_by_threads(const Step& step);
  void convert(const Step& step);
  void harm(const Step& step);

  std::vector<int32_t> draw_tokens(const Live& live, uint32_t length, uint32_t text) const;
  SaveOptions draw_form(const Step& step, const KvShape& shape, std::optional<Snapshot>* parent,
                        int* parent_file);
  Live& live(uint32_t who);
  int file(uint32_t which) const { return static_cast<int>(which % files_.size()); }
  bool sound(int file) const;
  bool heals(int file) const;
  void add(Session session, const Timeline& timeline);
  // Fails unless the call throws an Error whose text contains `part`.
  void expect_error(const std::string& call, const std::function<void()>& act,
                    const std::string& part = "");
  void compare(Live& live);
  void prove(Live& live);
  void prove(const File& file);
  void compare_all();
  void say(const std::string& line) { said_ += "  " + line + "\n"; }
  void fail(const std::string& what);

  Subjects& shared_;
  PlantedFault planted_;
  SessionOptions options_;
  TemporaryDirectory directory_;
  std::list<Live> live_;
  std::vector<File> files_;
  std::optional<Store> store_;
  std::vector<Stored> stored_;
  int numbers_ = 0;
  std::string said_, failure_;
  const Live* culprit_ = nullptr;
};

}  // namespace stet::test
