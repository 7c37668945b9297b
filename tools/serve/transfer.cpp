// States as snapshot files, out of the server and into it.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "stet/base/error.hpp"
#include "stet/files/file.hpp"
#include "tools/serve/interfaces.hpp"

namespace stet::serve {
namespace {

// A directory of this process alone, which goes with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_((std::filesystem::temp_directory_path() / "stet-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr)
      throw Error(ErrorKind::io, path_, "temporary directory", "one", "none");
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace

// A recipe is computed here, so its state is as good as any; what came as keys and values is not,
// until it was verified.
Response upload_state(Service& service, const Request& request, const Parts&) {
  if (request.body.empty())
    throw RequestError(400, "empty_body", "expected the bytes of a snapshot, found none");
  const Snapshot snapshot =
      Snapshot::parse(std::as_bytes(std::span(request.body)), "the uploaded snapshot");
  const SnapshotForm form = snapshot.meta().form;
  if (form == SnapshotForm::delta)
    throw RequestError(
        400, "unsupported_form",
        "expected a full snapshot or a recipe, found a delta, which needs another file");
  RestoreOptions how;
  how.session = service.session;
  how.tokenizer = service.tokenizer.get();
  how.map = false;
  how.check = true;
  return answer_at_once(service, request, [&](const Caller& caller) {
    Session session = snapshot.restore(service.model, how);
    return service.states.json(
        service.states.add(caller.client, "", {{"name", "upload"}}, std::move(session),
                           form == SnapshotForm::recipe ? Origin::verified : Origin::uploaded));
  });
}

Response download_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const std::string name = request.query_or("form", "full");
  const auto form = parse_snapshot_form(name);
  if (!form || *form == SnapshotForm::delta) refuse("?form", "full or recipe", printable(name, 40));
  Session session = service.states.open(node, nullptr);
  const TemporaryDirectory directory;
  SaveOptions save;
  save.form = *form;
  save.tokenizer = service.tokenizer.get();
  Snapshot::save(session, directory / "s.stet", save);
  const FileContent content = read_file_to_memory(directory / "s.stet");
  Response r;
  r.body.assign(reinterpret_cast<const char*>(content.bytes().data()), content.size);
  r.type = "application/octet-stream";
  r.headers = {{"Content-Disposition", "attachment; filename=\"" + node->id + ".stet\""}};
  return r;
}

}  // namespace stet::serve
