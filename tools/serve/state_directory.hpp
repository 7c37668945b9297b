// The directory of --state-dir: which files in it are the server's, and that one server alone has
// it. Nothing that the server did not write is changed or removed.
//
//   stet-states        the mark: this directory is a server's ("stet states 1")
//   lock               held (flock) while a server runs
//   secret             32 bytes, of which handles are made
//   expired            a line "ID CLIENT" for each state that --max-states or --ttl has forgotten
//   st_ID.recipe       a snapshot of form recipe: tokens and settings
//   st_ID.json         describes the state; from then on there is one
//   st_ID.stet         a snapshot of form full or delta: keys and values. Without the description
//                      (or .gone) it is somebody else's: the page lets people download files of
//                      such names
//   st_ID.gone         a description whose state was deleted: the other files follow it, once no
//                      delta needs them
//   *.tmp-*            files that are being written (AtomicFile)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stet::serve {

std::string random_secret();  // 32 bytes

class StateDirectory {
 public:
  // Makes the directory, takes an empty one, or adopts one of an older server, which had no mark:
  // says so on stderr. Waits `patience` seconds for another server to let go of it. Throws an io
  // Error, and changes nothing, for a directory that is something else, that others own or may
  // write to, or that another server still has.
  StateDirectory(const std::string& path, double patience);
  ~StateDirectory();
  StateDirectory(const StateDirectory&) = delete;
  StateDirectory& operator=(const StateDirectory&) = delete;

  const std::string& path() const { return path_; }
  const std::string& secret() const { return secret_; }
  // The path of a file: "st_ID" and ".json".
  std::string file(std::string_view id, std::string_view ending) const;

  // The states that are described, by when that file was touched last (seconds since 1970); those
  // that are gone; and snapshots that no state describes, which are somebody else's.
  struct Described {
    std::string id;
    int64_t touched;
  };
  struct Content {
    std::vector<Described> described;
    std::vector<std::string> gone, strange;
  };
  Content content() const;
  // Removes what a killed server has left half-written.
  void sweep() const;

  bool has(std::string_view id, std::string_view ending) const;
  // Writes a file that nobody sees half, durably.
  void write(std::string_view id, std::string_view ending, std::string_view bytes) const;
  void rename(std::string_view id, std::string_view from, std::string_view to) const;
  // Removes a file, which need not be there.
  void remove(std::string_view id, std::string_view ending) const;
  void sync() const;  // names that were changed reach the disk
  // Notes that a state was used at this time.
  void touch(std::string_view id, int64_t seconds) const;

  // Lines of the file `expired`, the latest last.
  std::vector<std::string> expired() const;
  void add_expired(const std::string& line) const;

 private:
  bool is_marked() const;
  bool check_content() const;
  void check_owner() const;
  void lock(double patience);
  int try_lock() const;
  void take(bool adopted);
  void read_secret();

  std::string path_, secret_;
  int lock_ = -1;
};

// "st_" and 32 hexadecimal digits.
bool is_state_id(std::string_view name);

}  // namespace stet::serve
