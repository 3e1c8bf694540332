// Creates spdlog's registry and default logger before the program has threads. Otherwise the first
// message creates them, on the thread that logs it. Other threads then find them created in code of
// libspdlog, which the distribution does not build for the sanitizer.
#include <spdlog/spdlog.h>

namespace agmm {
namespace {

[[gnu::constructor]] void CreateRegistry() { spdlog::default_logger_raw(); }

}  // namespace
}  // namespace agmm
