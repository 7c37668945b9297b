// The directory of --state-dir: its lock, its files, and the rule that nothing else in it is changed
// or removed.
//
//   stet-states        the mark of a server's directory ("stet states 1")
//   lock               locked (flock) while a server runs
//   secret             32 bytes, from which handles are made
//   expired            a line "ID CLIENT" for each state deleted by --max-states or --ttl
//   st_ID.recipe       a snapshot of form recipe: tokens and settings
//   st_ID.json         describes the state, which exists from then on
//   st_ID.stet         a snapshot of form full or delta: keys and values. Without st_ID.json or
//                      st_ID.gone the file is not the server's: users download files of such names
//   st_ID.gone         the description of a deleted state: the other files are removed with it, once
//                      no delta needs them
//   *.tmp-*            files being written (AtomicFile)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stet::serve {

std::string random_secret();  // 32 bytes

class StateDirectory {
 public:
  // Makes the directory, takes an empty one, or adopts one of an older server without a mark, which
  // is logged. Waits `patience` seconds for another server's lock. Throws an io Error and changes
  // nothing if the directory has other content, others own or may write to it, or it stays locked.
  StateDirectory(const std::string& path, double patience);
  ~StateDirectory();
  StateDirectory(const StateDirectory&) = delete;
  StateDirectory& operator=(const StateDirectory&) = delete;

  const std::string& path() const { return path_; }
  const std::string& secret() const { return secret_; }
  // Returns the path of a file, from "st_ID" and ".json".
  std::string file(std::string_view id, std::string_view ending) const;

  // The described states with the time of their last use (seconds since 1970). The ids of deleted
  // ones, and of states whose tokens alone are there. Snapshots that are not the server's.
  struct Described {
    std::string id;
    int64_t touched;
  };
  struct Content {
    std::vector<Described> described;
    std::vector<std::string> gone, undescribed, strange;
  };
  Content content() const;
  // Removes temporary files that a killed server has not finished.
  void sweep() const;

  bool has(std::string_view id, std::string_view ending) const;
  // Returns the path of a file to write. A pipe or a directory in its place is moved aside, which is
  // logged.
  std::string place_of(std::string_view id, std::string_view ending) const;
  // Writes a file durably. Readers never see a part of it.
  void write(std::string_view id, std::string_view ending, std::string_view bytes) const;
  void rename(std::string_view id, std::string_view from, std::string_view to) const;
  // Removes a file if it exists. A pipe or a directory in its place stays.
  void remove(std::string_view id, std::string_view ending) const;
  void sync() const;  // makes changes of names durable
  // Sets the time of a state's last use.
  void touch(std::string_view id, int64_t seconds) const;

  // Returns the lines of the file `expired`, in the order of writing.
  std::vector<std::string> expired() const;
  // Adds a line to it. A failure is logged: it turns the answer "expired" into "not known".
  void add_expired(const std::string& line) const;

 private:
  bool is_marked() const;
  bool check_content() const;
  void check_owner() const;
  void lock(double patience);
  int try_lock() const;
  bool lock_directory();
  bool take_locks();
  void unlock();
  void take(bool adopted);
  void read_secret();

  std::string path_, secret_;
  int lock_ = -1, directory_lock_ = -1;
};

// Returns true for "st_" and 32 hexadecimal digits.
bool is_state_id(std::string_view name);

}  // namespace stet::serve
