// C interface: snapshots.
#include "src/c/internal.hpp"
#include "stet/snapshot/encode.hpp"

namespace stet::c {
namespace {

SnapshotForm form_of(int32_t form) {
  switch (form) {
    case STET_FORM_FULL:
      return SnapshotForm::full;
    case STET_FORM_DELTA:
      return SnapshotForm::delta;
    case STET_FORM_RECIPE:
      return SnapshotForm::recipe;
    default:
      fail("form", "one of STET_FORM_...", std::to_string(form));
  }
}

int32_t form_value(SnapshotForm form) {
  switch (form) {
    case SnapshotForm::full:
      return STET_FORM_FULL;
    case SnapshotForm::delta:
      return STET_FORM_DELTA;
    case SnapshotForm::recipe:
      return STET_FORM_RECIPE;
  }
  return -1;
}

SaveOptions save_options(const stet_save_options& given, uint64_t known_flags) {
  check_flags(given.flags, known_flags, "options");
  SaveOptions o;
  o.form = form_of(given.form);
  if (o.form == SnapshotForm::delta && given.parent == nullptr)
    fail("parent", "the snapshot that a delta is made against", "NULL");
  if (o.form != SnapshotForm::delta && given.parent != nullptr)
    fail("parent", "", "only the form STET_FORM_DELTA has a parent");
  if (given.parent != nullptr) o.parent = &given.parent->snapshot;
  if (given.compress < 0 || given.compress > 9)
    fail("compress", "0 .. 9", std::to_string(given.compress));
  o.compress = given.compress;
  o.threads = threads_of(given.threads);
  if (given.mode < 0 || given.mode > 0777)
    fail("mode", "permissions, 0 .. 0777", std::to_string(given.mode));
  if (given.mode != 0) o.mode = static_cast<unsigned>(given.mode);
  return o;
}

RestoreOptions restore_options(const stet_restore_options* how) {
  const stet_restore_options given = input(how, "how");
  check_flags(given.flags,
              STET_RESTORE_IN_MEMORY | STET_RESTORE_CHECK | STET_RESTORE_HEAL | STET_RESTORE_TRUST |
                  STET_RESTORE_REPLAY,
              "how");
  RestoreOptions o;
  o.map = (given.flags & STET_RESTORE_IN_MEMORY) == 0;
  o.check = (given.flags & STET_RESTORE_CHECK) != 0;
  o.heal = (given.flags & STET_RESTORE_HEAL) != 0;
  o.trust = (given.flags & STET_RESTORE_TRUST) != 0;
  o.replay = (given.flags & STET_RESTORE_REPLAY) != 0;
  return o;
}

stet_snapshot_info info_of(const Snapshot& s) {
  const SnapshotMeta& m = s.meta();
  const std::optional<Contract> contract = stet::parse_contract(m.contract);
  stet_snapshot_info i{};
  i.path = s.path().c_str();
  i.contract_name = m.contract.c_str();
  i.architecture = m.architecture.c_str();
  i.config = m.config.c_str();
  i.model_fingerprint = m.fingerprints.back().second.c_str();
  i.tokenizer_fingerprint = m.tokenizer.c_str();
  i.checkpoint = m.checkpoint.c_str();
  i.parent_id = m.parent.c_str();
  i.parent_file = m.parent_file.c_str();
  i.file_size = s.file_size();
  i.stored_kv_bytes = s.stored_kv_bytes();
  i.positions = m.positions;
  i.capacity = m.capacity;
  i.layers = m.kv.layers;
  i.kv_heads = m.kv.kv_heads;
  i.head_dim = m.kv.head_dim;
  i.form = form_value(m.form);
  i.format_version = static_cast<int32_t>(s.version());
  i.contract = contract ? contract_value(*contract) : STET_CONTRACT_DEFAULT;
  i.contract_version = m.contract_version;
  i.kv_type = kv_type_value(m.kv.type);
  i.has_logits = s.logits().empty() ? 0 : 1;
  i.has_weights = s.weights() != nullptr ? 1 : 0;
  i.has_tokenizer = s.tokenizer_files() != nullptr ? 1 : 0;
  i.messages = m.chat.messages.size();
  i.prunes = m.prunes.size();
  i.edits = m.edits.size();
  return i;
}

// Returns the files that a snapshot brings along. They keep alive the memory that the snapshot lies
// in.
std::shared_ptr<const FileSource> archive_of(const stet_snapshot& s, const char* what,
                                             std::shared_ptr<const FileSource> files) {
  if (files == nullptr) {
    throw Error(ErrorKind::argument, s.snapshot.path(), what, "",
                "the snapshot was saved without it");
  }
  return with_owner(std::move(files), s.bytes);
}

// Returns a snapshot's state with the requested changes.
State converted(const Snapshot& snapshot, const stet_convert_options& o, int64_t* pruned) {
  const ModelConfig config = ModelConfig::from_canonical(snapshot.meta().config, snapshot.path());
  const std::optional<KvType> type = kv_type_of(o.kv_type);
  if (o.capacity != 0) checked_capacity(config, o.capacity);
  RestoreOptions how;
  how.check = true;
  how.session.capacity = o.capacity;
  State state = snapshot.state(how);
  if (o.prune != nullptr) {
    const PruneOptions removed = prune_options(input(o.prune, "prune"), STET_PRUNE_SHIFT);
    *pruned = prune(state, config, removed);
  }
  if (type && *type != state.kv.shape().type) return with_kv_type(state, *type);
  return state;
}

// Opens lent bytes. `parent` is null if none is given.
void open_bytes(const void* data, size_t size, const char* name, const stet_snapshot* parent,
                std::shared_ptr<const void> bytes, stet_snapshot*& to) {
  const auto all = items(static_cast<const std::byte*>(data), size, "data");
  // g++ 11 would not destroy `bytes` if a later member of a braced list threw (GCC bug 66139).
  Snapshot parsed = Snapshot::parse(all, cstring(name, "name"));
  if (parent != nullptr) {
    parsed.set_parent(parent->snapshot);
    bytes = both(std::move(bytes), parent->bytes);
  }
  to = new stet_snapshot{std::move(bytes), std::move(parsed)};
}

}  // namespace
}  // namespace stet::c

using namespace stet::c;

// ---------------------------------------------------------------- saving

stet_status stet_session_save(stet_session* session, const stet_tokenizer* tokenizer,
                              const char* path, const stet_save_options* options,
                              stet_digests* digests, stet_error** error) {
  return guarded(error, [&] {
    if (digests != nullptr) checked(digests, "digests");
    stet::Session& s = *at(session, "session").at;
    const stet_save_options given = input(options, "options");
    stet::SaveOptions o = save_options(given, STET_SAVE_WITH_WEIGHTS | STET_SAVE_WITH_TOKENIZER);
    std::shared_ptr<const stet::FileSource> files;
    if ((given.flags & STET_SAVE_WITH_WEIGHTS) != 0) o.weights_files = &s.model().source();
    if ((given.flags & STET_SAVE_WITH_TOKENIZER) != 0) {
      const stet::Tokenizer& t = *at(tokenizer, "tokenizer").tokenizer;
      t.check_own_files();
      files = stet::memory_source(t.files(), "tokenizer");
      o.tokenizer_files = files.get();
    }
    if (tokenizer != nullptr) o.tokenizer = tokenizer->tokenizer.get();
    const stet::StateDigests saved = stet::Snapshot::save(s, cstring(path, "path"), o);
    if (digests != nullptr) give(digests_value(saved), *digests);
  });
}

stet_status stet_session_save_bytes(stet_session* session, const stet_tokenizer* tokenizer,
                                    const stet_save_options* options, void** data, size_t* size,
                                    stet_digests* digests, stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(data, "data", size, "size");
    if (digests != nullptr) checked(digests, "digests");
    stet::Session& s = *at(session, "session").at;
    stet::SaveOptions o = save_options(input(options, "options"), 0);
    if (tokenizer != nullptr) o.tokenizer = tokenizer->tokenizer.get();
    stet::StateDigests saved;
    const std::vector<std::byte> bytes = stet::encode_snapshot(s, o, &saved);
    to.first = new_buffer<std::byte>(bytes.size());
    std::memcpy(to.first, bytes.data(), bytes.size());
    to.second = bytes.size();
    if (digests != nullptr) give(digests_value(saved), *digests);
  });
}

stet_status stet_snapshot_convert(const stet_snapshot* snapshot, const char* path,
                                  const stet_convert_options* options,
                                  const stet_save_options* save, int64_t* pruned,
                                  stet_digests* digests, stet_error** error) {
  return guarded(error, [&] {
    int64_t none = 0;
    int64_t& removed = pruned == nullptr ? none : *pruned;
    removed = 0;
    if (digests != nullptr) checked(digests, "digests");
    const stet::Snapshot& s = at(snapshot, "snapshot").snapshot;
    const std::string to = cstring(path, "path");
    const stet::SaveOptions o = save_options(input(save, "save"), 0);
    int64_t count = 0;
    const stet::State state = converted(s, input(options, "options"), &count);
    const stet::StateDigests saved = stet::Snapshot::save(state, s, to, o);
    removed = count;
    if (digests != nullptr) give(digests_value(saved), *digests);
  });
}

// ---------------------------------------------------------------- opening and inspecting

stet_status stet_snapshot_open(const char* path, const char* parent, stet_snapshot** snapshot,
                               stet_error** error) {
  return guarded(error, [&] {
    stet_snapshot*& to = output(snapshot, "snapshot");
    stet::Snapshot opened = stet::Snapshot::open(cstring(path, "path"));
    if (parent != nullptr)
      opened.find_parents(*parent == '\0' ? std::nullopt : std::optional<std::string>(parent));
    to = new stet_snapshot{nullptr, std::move(opened)};
  });
}

stet_status stet_snapshot_open_bytes(const void* data, size_t size, const char* name,
                                     stet_release_callback release, void* context,
                                     stet_snapshot** snapshot, stet_error** error) {
  return guarded(error, [&] {
    std::shared_ptr<const void> bytes = lent(release, context);
    stet_snapshot*& to = output(snapshot, "snapshot");
    open_bytes(data, size, name, nullptr, std::move(bytes), to);
  });
}

stet_status stet_snapshot_open_bytes_over(const void* data, size_t size, const char* name,
                                          const stet_snapshot* parent,
                                          stet_release_callback release, void* context,
                                          stet_snapshot** snapshot, stet_error** error) {
  return guarded(error, [&] {
    std::shared_ptr<const void> bytes = lent(release, context);
    stet_snapshot*& to = output(snapshot, "snapshot");
    open_bytes(data, size, name, &at(parent, "parent"), std::move(bytes), to);
  });
}

void stet_snapshot_free(stet_snapshot* snapshot) { delete snapshot; }

stet_status stet_snapshot_get_info(const stet_snapshot* snapshot, stet_snapshot_info* info,
                                   stet_error** error) {
  return guarded(error, [&] {
    stet_snapshot_info& to = checked(info, "info");
    give(info_of(at(snapshot, "snapshot").snapshot), to);
  });
}

stet_status stet_snapshot_get_digests(const stet_snapshot* snapshot, stet_digests* digests,
                                      stet_error** error) {
  return guarded(error, [&] {
    stet_digests& to = checked(digests, "digests");
    give(digests_value(at(snapshot, "snapshot").snapshot.digests()), to);
  });
}

stet_status stet_snapshot_tokens(const stet_snapshot* snapshot, const int32_t** ids, size_t* count,
                                 stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(ids, "ids", count, "count");
    const std::vector<int32_t>& tokens = at(snapshot, "snapshot").snapshot.tokens();
    if (tokens.empty()) return;
    to.first = tokens.data();
    to.second = tokens.size();
  });
}

stet_status stet_snapshot_logits(const stet_snapshot* snapshot, const float** logits, size_t* count,
                                 stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(logits, "logits", count, "count");
    const std::vector<float>& found = at(snapshot, "snapshot").snapshot.logits();
    if (found.empty()) return;
    to.first = found.data();
    to.second = found.size();
  });
}

stet_status stet_snapshot_message(const stet_snapshot* snapshot, size_t index,
                                  stet_message* message, stet_error** error) {
  return guarded(error, [&] {
    stet_message& to = output(message, "message");
    const stet::SnapshotMeta& meta = at(snapshot, "snapshot").snapshot.meta();
    to = message_value(element(meta.chat.messages, index, "index"));
  });
}

stet_status stet_snapshot_check(const stet_snapshot* snapshot, int32_t threads,
                                stet_check_report* report, stet_error** error) {
  return guarded(error, [&] {
    if (report != nullptr) checked(report, "report");
    const stet::SnapshotCheck found = at(snapshot, "snapshot").snapshot.check(threads_of(threads));
    if (report != nullptr) give(stet_check_report{0, found.blocks, found.files}, *report);
  });
}

// ---------------------------------------------------------------- restoring

stet_status stet_snapshot_load_model(const stet_snapshot* snapshot,
                                     const stet_model_options* options, stet_model** model,
                                     stet_error** error) {
  return guarded(error, [&] {
    stet_model*& to = output(model, "model");
    const stet_snapshot& s = at(snapshot, "snapshot");
    const stet_model_options o = model_options(options);
    auto source = archive_of(s, "weights", s.snapshot.weights());
    if ((o.flags & STET_MODEL_IN_MEMORY) != 0) source = stet::in_memory(std::move(source));
    to = new stet_model{load_model(std::move(source), o)};
  });
}

stet_status stet_snapshot_load_tokenizer(const stet_snapshot* snapshot, stet_tokenizer** tokenizer,
                                         stet_error** error) {
  return guarded(error, [&] {
    stet_tokenizer*& to = output(tokenizer, "tokenizer");
    const stet_snapshot& s = at(snapshot, "snapshot");
    to = new_tokenizer(
        stet::Tokenizer::load(*archive_of(s, "tokenizer", s.snapshot.tokenizer_files())));
  });
}

stet_status stet_snapshot_restore(const stet_snapshot* snapshot, const stet_model* model,
                                  const stet_tokenizer* tokenizer,
                                  const stet_session_options* options,
                                  const stet_restore_options* how, stet_restore_report* report,
                                  stet_session** session, stet_error** error) {
  return guarded(error, [&] {
    stet_session*& to = output(session, "session");
    if (report != nullptr) checked(report, "report");
    const stet::Snapshot& s = at(snapshot, "snapshot").snapshot;
    const std::shared_ptr<const stet::Model>& m = at(model, "model").model;
    stet::SessionOptions o = session_options(options, saved_contract(s));
    const std::optional<stet::KvType> type = kv_type_of(input(options, "options").kv_type);
    stet::RestoreOptions restore = restore_options(how);
    if (!restore.replay && type && *type != s.meta().kv.type) {
      throw stet::Error(stet::ErrorKind::mismatch, s.path(), "kv_type", "",
                        std::string("the snapshot holds ") + stet::kv_type_name(s.meta().kv.type) +
                            "; STET_RESTORE_REPLAY computes it again as " +
                            stet::kv_type_name(*type));
    }
    o.kv_type = type.value_or(s.meta().kv.type);
    restore.session = o;
    if (tokenizer != nullptr) restore.tokenizer = tokenizer->tokenizer.get();
    stet::RestoreReport found;
    to = new stet_session(s.restore(m, restore, &found));
    if (report == nullptr) return;
    give(stet_restore_report{0, found.reused, found.recomputed,
                             static_cast<int64_t>(found.healed.size()), found.checked ? 1 : 0},
         *report);
  });
}
