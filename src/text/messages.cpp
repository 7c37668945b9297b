#include <nlohmann/json.hpp>

#include "src/base/json_value.hpp"
#include "stet/chat/conversation.hpp"

namespace stet {
namespace {

using Json = nlohmann::ordered_json;

// Adds further fields to a message; they may replace role and content. Appends the others without
// searching for equal names, as update() would: their names are distinct.
void add_fields(Json& message, Json fields) {
  auto& members = message.get_ref<Json::object_t&>();
  for (auto& [name, value] : fields.get_ref<Json::object_t&>()) {
    if (name == "role" || name == "content")
      message[name] = std::move(value);
    else
      members.emplace_back(name, std::move(value));
  }
}

}  // namespace

jinja::Value template_messages(const std::vector<Message>& messages) {
  Json list = Json::array();
  for (const Message& m : messages) {
    Json message = {{"role", m.role}, {"content", m.content}};
    if (!m.fields.empty()) add_fields(message, parse_ordered_json(m.fields, "fields"));
    list.push_back(std::move(message));
  }
  return jinja::Value::from_json(list.dump(), "messages");
}

}  // namespace stet
