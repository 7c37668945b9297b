// Download and upload of states as snapshot files.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "stet/base/error.hpp"
#include "stet/files/file.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

// A directory of this process, removed by the destructor.
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

// Returns the state of ?over=, or null without it.
NodePtr state_over(Service& service, const Request& request) {
  const std::string id = request.query_or("over", "");
  return id.empty() ? nullptr : service.states.find(request.client, id, "?over");
}

// Writes a state as a full snapshot to a file.
std::unique_ptr<Snapshot> written(const Service& service, const NodePtr& node, Session& session,
                                  const TemporaryDirectory& directory) {
  // The name under which a client keeps the file that it downloads.
  const std::string path = directory / (node->id + ".stet").c_str();
  SaveOptions save;
  save.tokenizer = service.tokenizer.get();
  Snapshot::save(session, path, save);
  return std::make_unique<Snapshot>(Snapshot::open(path));
}

}  // namespace

// Uploads a state. A recipe is computed here and counts as verified; keys and values do not, until
// they are verified. A delta states which parent it needs.
Response upload_state(Service& service, const Request& request, const Parts&) {
  if (request.body.empty())
    throw RequestError(400, "empty_body", "the body is empty: send the bytes of a snapshot");
  Snapshot snapshot =
      Snapshot::parse(std::as_bytes(std::span(request.body)), "the uploaded snapshot");
  const SnapshotForm form = snapshot.meta().form;
  const bool over = !request.query_or("over", "").empty();
  if (form == SnapshotForm::delta && !over)
    refuse("?over",
           "the id of the state that this delta was made over, " +
               printable(snapshot.meta().parent, 80),
           "nothing", "missing_field");
  if (form != SnapshotForm::delta && over)
    throw RequestError(400, "invalid_value",
                       fmt::format("?over is for deltas, and this is a {} snapshot; leave it out",
                                   snapshot_form_name(form)),
                       "?over");
  RestoreOptions how;
  how.session = service.session;
  how.tokenizer = service.tokenizer.get();
  how.map = false;
  how.check = true;
  return answer_at_once(service, request, [&](const Caller& caller) {
    const TemporaryDirectory directory;
    std::unique_ptr<Snapshot> parent;
    if (const NodePtr node = state_over(service, request)) {
      Session session = service.open(caller, node);
      parent = written(service, node, session, directory);
      if (parent->state_name() != snapshot.meta().parent)
        refuse("?over",
               "the state that this delta was made over, " + printable(snapshot.meta().parent, 80),
               parent->state_name());
      snapshot.find_parents(parent->path());
    }
    how.append = service.appender(caller);
    Session session = snapshot.restore(service.model, how);
    return service.states.json(service.states.add(
        caller.client, {request.query_or("over", "")}, {{"name", "upload"}}, std::move(session),
        form == SnapshotForm::recipe ? Origin::verified : Origin::uploaded));
  });
}

namespace {

// Returns a file of a state. `over` is the state that a delta is made over, with its session, or
// null.
Response file_of(const Service& service, const NodePtr& node, Session& session, SnapshotForm form,
                 const NodePtr& over, Session* over_session) {
  const TemporaryDirectory directory;
  const std::unique_ptr<Snapshot> parent =
      over == nullptr ? nullptr : written(service, over, *over_session, directory);
  SaveOptions save;
  save.form = form;
  save.tokenizer = service.tokenizer.get();
  save.parent = parent.get();
  Snapshot::save(session, directory / "s.stet", save);
  const FileContent content = read_file_to_memory(directory / "s.stet");
  Response r;
  r.body.assign(reinterpret_cast<const char*>(content.bytes().data()), content.size);
  r.type = "application/octet-stream";
  r.headers = {{"Content-Disposition", "attachment; filename=\"" + node->id + ".stet\""}};
  return r;
}

}  // namespace

Response download_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const std::string over = request.query_or("over", ""),
                    name = request.query_or("form", over.empty() ? "full" : "delta");
  const auto form = parse_snapshot_form(name);
  if (!form) refuse("?form", "full, recipe or delta", printable(name, 40));
  if ((*form == SnapshotForm::delta) != !over.empty())
    throw RequestError(400, "invalid_value",
                       over.empty() ? "?form=delta needs ?over, the id of the state to compare with"
                                    : "?over is for ?form=delta; leave it out",
                       "?over");
  const NodePtr parent = state_over(service, request);
  std::vector<NodePtr> nodes = {node};
  if (parent != nullptr) nodes.push_back(parent);
  return respond_from(service, request, nodes, [&](std::vector<Session>& sessions) {
    return file_of(service, node, sessions[0], *form, parent,
                   parent == nullptr ? nullptr : &sessions[1]);
  });
}

}  // namespace stet::serve
