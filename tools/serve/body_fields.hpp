// The fields of a request's body. Each is declared once. Its reading, the refusal of others and
// /openapi.json follow from the declaration.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/serve/service.hpp"

namespace stet::serve {

// The context in which a field is read.
struct BodyContext {
  Service& service;
  const Request& request;
  NodePtr node;  // the state that the address names, or null
};

struct FieldSchema {
  std::string name, type;  // `type` is one of JSON schema, or "any"
  bool required = false;
};

// The fields of a body that is read into a `Body`, in order.
template <class Body>
class BodyFields {
 public:
  using Read = std::function<void(Body&, const Field&, const BodyContext&)>;

  // Adds a field. `read` is called even if the field is absent.
  BodyFields& field(const char* name, const char* type, Read read) {
    fields_.push_back({{name, type, false}, std::move(read)});
    return *this;
  }
  // Adds a field without which `read` throws.
  BodyFields& required(const char* name, const char* type, Read read) {
    fields_.push_back({{name, type, true}, std::move(read)});
    return *this;
  }
  BodyFields& number(const char* name, std::optional<double> Body::*member, double min,
                     double max) {
    return field(name, "number", [=](Body& body, const Field& f, const BodyContext&) {
      body.*member = f.number(min, max);
    });
  }
  BodyFields& integer(const char* name, std::optional<int64_t> Body::*member, int64_t min,
                      int64_t max) {
    return field(name, "integer", [=](Body& body, const Field& f, const BodyContext&) {
      body.*member = f.integer(min, max);
    });
  }
  BodyFields& text(const char* name, std::optional<std::string> Body::*member) {
    return field(name, "string",
                 [=](Body& body, const Field& f, const BodyContext&) { body.*member = f.text(); });
  }
  // Adds a boolean. If the field is absent, the member keeps its initial value.
  BodyFields& boolean(const char* name, bool Body::*member) {
    return field(name, "boolean", [=](Body& body, const Field& f, const BodyContext&) {
      body.*member = f.boolean().value_or(body.*member);
    });
  }
  // Adds a field that this server does not support; see Field::neutral().
  BodyFields& neutral(const char* name, const char* type, const std::vector<Json>& values = {}) {
    return field(name, type,
                 [values](Body&, const Field& f, const BodyContext&) { f.neutral(values); });
  }
  // Adds fields that cannot affect a reply by their definition.
  BodyFields& unused(const char* type, std::initializer_list<const char*> names) {
    for (const char* name : names)
      field(name, type, [](Body&, const Field&, const BodyContext&) {});
    return *this;
  }
  // Adds the fields of a member.
  template <class Part>
  BodyFields& part(Part Body::*member, const BodyFields<Part>& fields) {
    for (const auto& [schema, read] : fields.fields_)
      fields_.push_back(
          {schema, [member, read = read](Body& body, const Field& f, const BodyContext& context) {
             read(body.*member, f, context);
           }});
    return *this;
  }

  // Reads a body. Throws a RequestError (400) for a field that is wrong, missing or not declared.
  Body read(const Json& json, const BodyContext& context) const {
    Body body;
    Fields all(json, "");
    for (const auto& [schema, read] : fields_) read(body, all[schema.name], context);
    all.finish();
    return body;
  }
  std::vector<FieldSchema> schema() const {
    std::vector<FieldSchema> all;
    for (const auto& declared : fields_) all.push_back(declared.first);
    return all;
  }

 private:
  template <class>
  friend class BodyFields;
  std::vector<std::pair<FieldSchema, Read>> fields_;
};

// Fields shared by several bodies (common_fields.cpp).
constexpr size_t kMaxStopStrings = 16;
BodyFields<DrawOptions> draw_fields();
void read_temperature(DrawOptions& draw, const Field& f, const BodyContext&);
BodyFields<ChatOptions> chat_fields();
// Returns the name that a request gives the model, by default the server's first. Throws a
// RequestError (404) for others.
std::string read_model(const Field& field, const BodyContext& context);
// Returns the state of "resume_from", or null if absent.
NodePtr read_resume_from(const Field& field, const BodyContext& context);
// Return messages, one of them, or the content of one: a string or a list of text parts.
std::vector<Message> read_messages(const Field& field);
Message read_message(const Json& json, const std::string& pointer);
std::string read_content(const Json& content, const std::string& pointer);

}  // namespace stet::serve
