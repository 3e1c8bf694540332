// A minimal UCX loop that sleeps while nothing happens: all ranks send active messages of 1 MiB to
// all others at once, and each message is received at its place in the gathered buffer. Measures
// the cost of moving a byte, and an all-gather to compare the others with.
//   ucx_rank FOLDER RANK        answers its worker's address, then takes commands as in
//   contender_rank.h
//     peers ADDRESS...            connects to all of them, in the order of the ranks
//     move BYTES COUNT            COUNT times, begun together, BYTES to and from every peer;
//     answers
//                                 the microseconds of each time here, then the nanoseconds of CPU
//                                 per byte sent or received, over all
// The environment determines how UCX moves the bytes.
#include <poll.h>
#include <sys/resource.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <deque>

#include "tests/bench/contender_rank.h"

namespace agmm::bench {
namespace {

constexpr int64_t kMessage = 1 << 20;
constexpr unsigned kPayload = 1, kReady = 2;  // active messages

struct Header {
  int64_t from, value;  // offset in bytes; for kReady, the time
};

void Check(ucs_status_t status, const char* what) {
  if (status != UCS_OK)
    throw std::runtime_error(std::string(what) + ": " + ucs_status_string(status));
}

double CpuUs() {
  rusage use;
  getrusage(RUSAGE_SELF, &use);
  return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 + use.ru_utime.tv_usec +
         use.ru_stime.tv_usec;
}

class Rank {
 public:
  explicit Rank(int rank) : rank_(rank) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    ucp_config_t* config = nullptr;
    Check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    Check(ucp_init(&params, config, &context_), "ucp_init");
    ucp_config_release(config);
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    Check(ucp_worker_create(context_, &worker, &worker_), "ucp_worker_create");
    Check(ucp_worker_get_efd(worker_, &event_), "ucp_worker_get_efd");
    Handle(kPayload, [](void* self, const void* header, size_t, void* data, size_t size,
                        const ucp_am_recv_param_t* param) {
      return static_cast<Rank*>(self)->Payload(*static_cast<const Header*>(header), data, size,
                                               *param);
    });
    Handle(kReady,
           [](void* self, const void* header, size_t, void*, size_t, const ucp_am_recv_param_t*) {
             auto* const rank = static_cast<Rank*>(self);
             rank->latest_ = std::max(rank->latest_, static_cast<const Header*>(header)->value);
             ++rank->ready_;
             return UCS_OK;
           });
  }

  std::string Answer(const Words& words) {
    if (words.at(0) == "address") return Address();
    if (words[0] == "peers") return Connect(words);
    if (words[0] == "move") return Move(std::stoll(words.at(1)), std::stoi(words.at(2)));
    throw std::invalid_argument("unknown command " + words[0]);
  }

 private:
  void Handle(unsigned id, ucp_am_recv_callback_t callback) {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.cb = callback;
    handler.arg = this;
    Check(ucp_worker_set_am_recv_handler(worker_, &handler), "ucp_worker_set_am_recv_handler");
  }

  std::string Address() {
    ucp_address_t* address = nullptr;
    size_t size = 0;
    Check(ucp_worker_get_address(worker_, &address, &size), "ucp_worker_get_address");
    std::string hex;
    for (size_t i = 0; i < size; ++i) {
      constexpr char kDigits[] = "0123456789abcdef";
      const auto byte = reinterpret_cast<const uint8_t*>(address)[i];
      hex += {kDigits[byte >> 4], kDigits[byte & 15]};
    }
    ucp_worker_release_address(worker_, address);
    return hex;
  }

  std::string Connect(const Words& words) {
    for (size_t peer = 1; peer < words.size(); ++peer) {
      peers_.push_back(nullptr);
      if (static_cast<int>(peer) - 1 == rank_) continue;
      std::string address;
      for (size_t i = 0; i < words[peer].size(); i += 2)
        address += static_cast<char>(std::stoi(words[peer].substr(i, 2), nullptr, 16));
      ucp_ep_params_t params{};
      params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
      params.address = reinterpret_cast<const ucp_address_t*>(address.data());
      Check(ucp_ep_create(worker_, &params, &peers_.back()), "ucp_ep_create");
    }
    return "";
  }

  std::string Move(int64_t bytes, int count) {
    const int64_t others = static_cast<int64_t>(peers_.size()) - 1;
    if (bytes > bytes_) {  // touched, so that no page fault is counted
      own_ = MakeBuffer(bytes / 2 + 1);
      gathered_ = MakeBuffer((bytes / 2 + 1) * peers_.size());
      bytes_ = bytes;
    }
    std::ostringstream text;
    text.precision(12);
    double cpu = 0;
    for (int i = 0; i < count; ++i) {
      const double start = Agree();
      WaitUntil(start);
      const double cpu_start = CpuUs();
      received_target_ += others * bytes;
      for (int64_t offset = 0; offset < bytes; offset += kMessage) {
        for (size_t step = 1; step < peers_.size(); ++step) {
          const size_t to = (rank_ + step) % peers_.size();
          Send(peers_[to], kPayload, {rank_, offset}, Byte(own_) + offset,
               std::min(kMessage, bytes - offset));
        }
      }
      Sleep([&] { return sends_ == 0 && received_ >= received_target_; });
      text << NowUs() - start << " ";
      cpu += CpuUs() - cpu_start;
    }
    text << cpu * 1000 / (2.0 * static_cast<double>(others * bytes) * count);
    return text.str();
  }

  // Returns the time to begin, once all ranks have called this as often as this rank.
  double Agree() {
    ready_target_ += static_cast<int64_t>(peers_.size()) - 1;
    const auto now = static_cast<int64_t>(NowUs());
    latest_ = std::max(latest_, now);
    for (ucp_ep_h peer : peers_) {
      if (peer != nullptr) Send(peer, kReady, {rank_, now}, nullptr, 0);
    }
    Sleep([&] { return sends_ == 0 && ready_ >= ready_target_; });
    return static_cast<double>(latest_) + kLeadUs;
  }

  void Send(ucp_ep_h to, unsigned id, Header header, void* data, int64_t bytes) {
    headers_.push_back(header);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = [](void* request, ucs_status_t status, void* self) {
      static_cast<Rank*>(self)->Done(request, status);
      --static_cast<Rank*>(self)->sends_;
    };
    param.user_data = this;
    ++sends_;
    const ucs_status_ptr_t request =
        ucp_am_send_nbx(to, id, &headers_.back(), sizeof(Header), data, bytes, &param);
    if (UCS_PTR_IS_ERR(request)) Check(UCS_PTR_STATUS(request), "ucp_am_send_nbx");
    if (request == nullptr) --sends_;
  }

  ucs_status_t Payload(const Header& header, void* data, size_t size,
                       const ucp_am_recv_param_t& param) {
    char* to = Byte(gathered_) + header.from * bytes_ + header.value;
    if ((param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      std::memcpy(to, data, size);
      received_ += static_cast<int64_t>(size);
      return UCS_OK;
    }
    ucp_request_param_t receive{};
    receive.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    receive.cb.recv_am = [](void* request, ucs_status_t status, size_t length, void* self) {
      static_cast<Rank*>(self)->Done(request, status);
      static_cast<Rank*>(self)->received_ += static_cast<int64_t>(length);
    };
    receive.user_data = this;
    const ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_, data, to, size, &receive);
    if (UCS_PTR_IS_ERR(request)) failed_ = UCS_PTR_STATUS(request);
    if (request == nullptr) received_ += static_cast<int64_t>(size);
    return UCS_OK;
  }

  void Done(void* request, ucs_status_t status) {
    if (status != UCS_OK) failed_ = status;
    ucp_request_free(request);
  }

  // Makes progress until `done`, and sleeps in between.
  template <typename Condition>
  void Sleep(Condition done) {
    while (!done()) {
      Check(failed_, "a message");
      if (ucp_worker_progress(worker_) != 0) continue;
      const ucs_status_t armed = ucp_worker_arm(worker_);
      if (armed == UCS_ERR_BUSY) continue;
      Check(armed, "ucp_worker_arm");
      pollfd event{event_, POLLIN, 0};
      if (poll(&event, 1, kStallMs) == 0) throw std::runtime_error("nothing has happened for 30 s");
    }
    if (sends_ == 0) headers_.clear();
  }

  static char* Byte(const Buffer& buffer) { return reinterpret_cast<char*>(buffer.get()); }

  static constexpr int kStallMs = 30000;
  const int64_t rank_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_ = -1;
  std::vector<ucp_ep_h> peers_;
  Buffer own_, gathered_;
  int64_t bytes_ = 0;           // that the buffers hold, of a rank
  std::deque<Header> headers_;  // valid until all is sent
  int64_t sends_ = 0, received_ = 0, received_target_ = 0, ready_ = 0, ready_target_ = 0,
          latest_ = 0;
  ucs_status_t failed_ = UCS_OK;
};

}  // namespace
}  // namespace agmm::bench

int main(int argc, char** argv) {
  agmm::bench::Rank rank(std::stoi(argv[2]));
  agmm::bench::Serve(argv[1], std::stoi(argv[2]),
                     [&](const agmm::bench::Words& words) { return rank.Answer(words); });
}
