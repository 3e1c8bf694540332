#include "client/ctl/terminal_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"

namespace agmm {

TerminalLine::TerminalLine() : terminal_(isatty(STDERR_FILENO) == 1) {}

TerminalLine::~TerminalLine() { Wipe(); }

void TerminalLine::Draw(std::string text) {
  if (!terminal_) return;
  // A line that wraps could not be drawn over.
  winsize window = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
    text.resize(std::min<size_t>(text.size(), window.ws_col - 1));
  absl::FPrintF(stderr, "\r\033[K%s", text);
  std::fflush(stderr);
  visible_ = true;
}

void TerminalLine::Wipe() {
  if (!visible_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  visible_ = false;
}

}  // namespace agmm
