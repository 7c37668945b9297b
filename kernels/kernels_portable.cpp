namespace stet {}
