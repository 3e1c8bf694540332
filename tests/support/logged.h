// The log as text.
#pragma once

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <string>

namespace agmm {

// Captures the log, at this level and above, during its lifetime.
class Logged {
 public:
  explicit Logged(spdlog::level::level_enum level = spdlog::level::info) {
    auto logger = std::make_shared<spdlog::logger>("test", sink_);
    logger->set_level(level);
    logger->set_pattern("%l: %v");
    spdlog::set_default_logger(std::move(logger));
  }
  ~Logged() { spdlog::set_default_logger(before_); }
  // Thread-safe.
  std::string text() const { return sink_->text(); }

 private:
  class Sink final : public spdlog::sinks::base_sink<std::mutex> {
   public:
    std::string text() {
      std::lock_guard lock(mutex_);
      return text_;
    }

   private:
    void sink_it_(const spdlog::details::log_msg& message) override {
      spdlog::memory_buf_t line;
      formatter_->format(message, line);
      text_.append(line.data(), line.size());
    }
    void flush_() override {}

    std::string text_;
  };

  const std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

}  // namespace agmm
