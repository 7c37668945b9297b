#include <nlohmann/json.hpp>

#include "stet/chat/conversation.hpp"

namespace stet {

jinja::Value template_messages(const std::vector<Message>& messages) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Message& m : messages) {
    Json message = {{"role", m.role}, {"content", m.content}};
    if (!m.fields.empty()) message.update(Json::parse(m.fields));
    list.push_back(std::move(message));
  }
  return jinja::Value::from_json(list.dump(), "messages");
}

}  // namespace stet
