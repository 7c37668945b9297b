// C interface: models.
#include "src/c/internal.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/checkpoint/packed.hpp"

namespace stet::c {

stet_model_options model_options(const stet_model_options* options) {
  const stet_model_options o = input(options, "options");
  check_flags(o.flags, STET_MODEL_IN_MEMORY, "options");
  return o;
}

std::shared_ptr<const Model> load_model(std::shared_ptr<const FileSource> source,
                                        const stet_model_options& options) {
  const std::optional<Contract> contract = contract_of(options.contract);
  const int threads = threads_of(options.threads);
  return Model::load(source, threads, contract ? *contract : contract_of_weights(*source));
}

}  // namespace stet::c

using namespace stet::c;

stet_status stet_model_load(const char* directory, const stet_model_options* options,
                            stet_model** model, stet_error** error) {
  return guarded(error, [&] {
    stet_model*& to = output(model, "model");
    const stet_model_options o = model_options(options);
    const bool map = (o.flags & STET_MODEL_IN_MEMORY) == 0;
    to = new stet_model{
        load_model(stet::checkpoint_source(cstring(directory, "directory"), map), o)};
  });
}

stet_status stet_model_load_files(const stet_file* files, size_t count, const char* name,
                                  stet_release_callback release, void* context,
                                  const stet_model_options* options, stet_model** model,
                                  stet_error** error) {
  return guarded(error, [&] {
    const std::shared_ptr<const void> bytes = lent(release, context);
    stet_model*& to = output(model, "model");
    const stet_model_options o = model_options(options);
    std::shared_ptr<const stet::FileSource> source =
        lent_files(items(files, count, "files"), cstring(name, "name"), bytes);
    if ((o.flags & STET_MODEL_IN_MEMORY) != 0) source = stet::in_memory(std::move(source));
    to = new stet_model{load_model(std::move(source), o)};
  });
}

void stet_model_free(stet_model* model) { delete model; }

stet_status stet_model_get_info(const stet_model* model, stet_model_info* info,
                                stet_error** error) {
  return guarded(error, [&] {
    stet_model_info& to = checked(info, "info");
    const stet::Model& m = *at(model, "model").model;
    const stet::ModelConfig& c = m.config();
    stet_model_info i{};
    i.family = c.family.c_str();
    i.architecture = c.architecture.c_str();
    i.source = m.directory().c_str();
    i.fingerprint = m.fingerprint().c_str();
    i.vocab_size = c.vocab_size;
    i.hidden_size = c.hidden_size;
    i.intermediate_size = c.intermediate_size;
    i.layers = c.layers;
    i.heads = c.heads;
    i.kv_heads = c.kv_heads;
    i.head_dim = c.head_dim;
    i.max_positions = c.max_positions;
    i.weight_bytes = m.weight_bytes();
    i.contract = contract_value(m.contract());
    i.fingerprint_count = m.fingerprints().size();
    give(i, to);
  });
}

stet_status stet_model_fingerprint(const stet_model* model, size_t index, const char** group,
                                   const char** fingerprint, stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(group, "group", fingerprint, "fingerprint");
    const auto& [name, text] = element(at(model, "model").model->fingerprints(), index, "index");
    to.first = name.c_str();
    to.second = text.c_str();
  });
}

stet_status stet_model_pack(const char* directory, const char* output_directory, int32_t contract,
                            int32_t threads, stet_error** error) {
  return guarded(error, [&] {
    const auto source = stet::checkpoint_source(cstring(directory, "directory"));
    const std::optional<stet::Contract> to = contract_of(contract);
    stet::pack_checkpoint(*source, to ? *to : stet::contract_of_weights(*source),
                          cstring(output_directory, "output"), threads_of(threads));
  });
}

stet_status stet_model_check_packed(const char* directory, int32_t threads, uint64_t* bytes,
                                    stet_error** error) {
  return guarded(error, [&] {
    uint64_t& to = output(bytes, "bytes");
    const auto source = stet::checkpoint_source(cstring(directory, "directory"));
    to = stet::check_packed(*source, threads_of(threads));
  });
}
