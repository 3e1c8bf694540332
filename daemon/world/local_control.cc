#include "daemon/world/local_control.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "daemon/rpc/validate.h"
#include "daemon/world/job_outcomes.h"

namespace agmm {

void LocalControl::GetStatus(const CallContext& context, const v1::GetStatusRequest& request,
                             Reply<v1::GetStatusResponse> reply) {
  OnLoop(
      context, request, std::move(reply),
      [parts = parts_](const CallContext&, const v1::GetStatusRequest&,
                       Reply<v1::GetStatusResponse> reply) {
        v1::GetStatusResponse status;
        parts.sequencer->FillStatus(&status);
        for (v1::NodeStatus& node : *status.mutable_nodes()) {
          for (v1::DeviceStatus& device : *node.mutable_devices()) {
            // Nothing is placed before the first complete world, nor in a heap that is missing or
            // has changed since.
            if (device.rank() >= parts.placement->rank_count() ||
                device.heap_bytes() != parts.placement->heap_bytes(device.rank())) {
              continue;
            }
            device.set_heap_free_bytes(parts.placement->free_bytes(device.rank()));
            device.set_heap_largest_free_bytes(parts.placement->largest_free_bytes(device.rank()));
            device.set_tensor_bytes(
                parts.placement->used_bytes(device.rank(), MemoryClass::kTensor));
            device.set_held_bytes(parts.placement->used_bytes(device.rank(), MemoryClass::kHeld));
            device.set_workspace_bytes(
                parts.placement->used_bytes(device.rank(), MemoryClass::kWorkspace));
          }
        }
        reply(std::move(status));
      });
}

void LocalControl::OpenedSession(const CallContext& context,
                                 const v1::OpenedSessionRequest& request,
                                 Reply<v1::OpenedSessionResponse> reply) {
  OnLoop(context, request, std::move(reply),
         [this](const CallContext&, const v1::OpenedSessionRequest& request,
                Reply<v1::OpenedSessionResponse> reply) {
           if (request.node() < 0 || request.node() >= parts_.sequencer->node_count()) {
             return reply(absl::InvalidArgumentError(
                 absl::StrFormat("a session of node %d; the world has nodes 0 to %d",
                                 request.node(), parts_.sequencer->node_count() - 1)));
           }
           if (request.session_id().empty() ||
               !sessions_.try_emplace(request.session_id(), Session{request.node(), request.key()})
                    .second) {
             return reply(
                 absl::AlreadyExistsError("the session id is empty or taken; choose another"));
           }
           reply(v1::OpenedSessionResponse());
         });
}

void LocalControl::CloseSession(const CallContext& context, const v1::CloseSessionRequest& request,
                                Reply<v1::CloseSessionResponse> reply) {
  OnLoop(context, request, std::move(reply),
         [this](const CallContext&, const v1::CloseSessionRequest& request,
                Reply<v1::CloseSessionResponse> reply) {
           if (const auto it = sessions_.find(request.session_id()); it != sessions_.end()) {
             // Its id stands in what belongs to it, for all to see.
             if (it->second.key != request.key()) {
               return reply(absl::PermissionDeniedError(absl::StrFormat(
                   "session %s is closed by the daemon that opened it, with its key",
                   request.session_id())));
             }
             sessions_.erase(it);
             EndSession(request.session_id());
           }
           reply(v1::CloseSessionResponse());
         });
}

void LocalControl::EndSession(const std::string& session) {
  parts_.scheduler->EndSession(session);
  parts_.catalog->EndSession(session);
}

absl::Status LocalControl::CheckSession(const std::string& session) const {
  if (session.empty() || sessions_.contains(session)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("session %s has ended; open a new one", session));
}

void LocalControl::OnNodeLost(int node) {
  parts_.catalog->EndAccessesOf(node);
  std::vector<std::string> ended;
  for (const auto& [session, open] : sessions_)
    if (open.node == node) ended.push_back(session);
  for (const std::string& session : ended) {
    sessions_.erase(session);
    EndSession(session);
  }
}

void LocalControl::CreateTensor(const CallContext& context, const v1::CreateTensorRequest& request,
                                Reply<v1::Tensor> reply) {
  OnLoop(context, request, std::move(reply), [this](const auto& c, const auto& r, auto reply) {
    if (const absl::Status open = CheckSession(r.session_id()); !open.ok()) return reply(open);
    parts_.catalog->CreateTensor(c, r, std::move(reply));
  });
}

void LocalControl::DeleteTensor(const CallContext& context, const v1::DeleteTensorRequest& request,
                                Reply<v1::DeleteTensorResponse> reply) {
  OnLoop(context, request, std::move(reply),
         [catalog = parts_.catalog](const auto& c, const auto& r, auto reply) {
           catalog->DeleteTensor(c, r, std::move(reply));
         });
}

void LocalControl::ListTensors(const CallContext& context, const v1::ListTensorsRequest& request,
                               Reply<v1::ListTensorsResponse> reply) {
  OnLoop(context, request, std::move(reply),
         [catalog = parts_.catalog](const auto&, const auto& request, auto reply) {
           reply(catalog->ListTensors(request));
         });
}

void LocalControl::GetTensor(const CallContext& context, const v1::GetTensorRequest& request,
                             Reply<v1::Tensor> reply) {
  OnLoop(context, request, std::move(reply),
         [catalog = parts_.catalog](const auto&, const auto& r, auto reply) {
           reply(catalog->GetTensor(r));
         });
}

void LocalControl::FillTensor(const CallContext& context, const v1::FillTensorRequest& request,
                              Reply<v1::Tensor> reply) {
  OnLoop(context, request, std::move(reply), [this](const auto& c, const auto& r, auto reply) {
    if (const absl::Status open = CheckSession(r.put().session_id()); !open.ok())
      return reply(open);
    parts_.catalog->FillTensor(c, r, std::move(reply));
  });
}

void LocalControl::BeginAccess(const CallContext& context, const v1::BeginAccessRequest& request,
                               Reply<v1::BeginAccessResponse> reply) {
  // A caller who goes as the access is granted, or while the answer is on its way to it, never
  // hears of it: nobody else would end it.
  Reply<v1::BeginAccessResponse> kept =
      [loop = parts_.loop, catalog = parts_.catalog, cancel = context.cancel, node = request.node(),
       reply = std::move(reply)](absl::StatusOr<v1::BeginAccessResponse> begun) {
        v1::EndAccessRequest end;
        if (begun.ok()) end.set_access_id(begun->access_id());
        end.set_node(node);
        end.set_untouched(true);
        reply(std::move(begun));
        if (end.access_id() == 0) return;
        cancel->OnCancel([loop, catalog, end](const absl::Status&) {
          loop->Post([catalog, end] {
            catalog->EndAccess({}, end, [](const absl::StatusOr<v1::EndAccessResponse>&) {});
          });
        });
      };
  OnLoop(context, request, std::move(kept), [this](const auto& c, const auto& r, auto reply) {
    if (const absl::Status open = CheckSession(r.put().session_id()); !open.ok())
      return reply(open);
    parts_.catalog->BeginAccess(c, r, std::move(reply));
  });
}

void LocalControl::EndAccess(const CallContext& context, const v1::EndAccessRequest& request,
                             Reply<v1::EndAccessResponse> reply) {
  OnLoop(context, request, std::move(reply),
         [catalog = parts_.catalog](const auto& c, const auto& r, auto reply) {
           catalog->EndAccess(c, r, std::move(reply));
         });
}

void LocalControl::SubmitJob(const CallContext& context, const v1::SubmitJobRequest& request,
                             Reply<v1::Job> reply) {
  OnLoop(context, request, std::move(reply), [this](const auto& c, const auto& r, auto reply) {
    if (const absl::Status open = CheckSession(r.session_id()); !open.ok()) return reply(open);
    parts_.scheduler->SubmitJob(c, r, std::move(reply));
  });
}

void LocalControl::RunJob(const CallContext& context, const v1::SubmitJobRequest& request,
                          Reply<v1::Job> reply) {
  if (!context.sequencer.empty() && context.sequencer != parts_.sequencer->incarnation())
    return reply(OfAnEarlierSequencer(request));
  if (const absl::Status open = CheckSession(request.session_id()); !open.ok()) return reply(open);
  parts_.scheduler->RunJob(context, request, std::move(reply));
}

void LocalControl::RunJobs(const CallContext& context, std::vector<v1::SubmitJobRequest> jobs,
                           std::shared_ptr<JobOutcomes> outcomes) {
  parts_.loop->Post([this, context, jobs = std::move(jobs), outcomes = std::move(outcomes)] {
    for (const v1::SubmitJobRequest& job : jobs) {
      RunJob(context, job,
             [loop = parts_.loop, outcomes, id = job.request_id()](absl::StatusOr<v1::Job> ended) {
               outcomes->Add(ToOutcome(id, std::move(ended)));
               loop->PostLast([outcomes] { outcomes->Flush(); });
             });
    }
  });
}

void LocalControl::RunForwarded(const std::shared_ptr<MemberLink>& link,
                                const v1::ForwardedJobs& jobs) {
  CallContext context;
  context.principal = jobs.principal();
  context.sequencer = jobs.sequencer();
  uint64_t number = jobs.first_number();
  for (const v1::SubmitJobRequest& job : jobs.jobs()) {
    Reply<v1::Job> reply = [link, number](absl::StatusOr<v1::Job> ended) {
      v1::SequencerMessage message;
      v1::ForwardedOutcome* outcome = message.add_outcomes();
      outcome->set_number(number);
      *outcome->mutable_outcome() = ToOutcome("", std::move(ended));
      link->Send(std::move(message));
    };
    ++number;
    // Another daemon may be of any make.
    if (const absl::Status valid = Validate(job); !valid.ok()) {
      reply(valid);
    } else {
      RunJob(context, job, std::move(reply));
    }
  }
}

void LocalControl::GetJob(const CallContext& context, const v1::GetJobRequest& request,
                          Reply<v1::Job> reply) {
  OnLoop(context, request, std::move(reply),
         [jobs = parts_.scheduler](const auto& c, const auto& r, auto reply) {
           jobs->GetJob(c, r, std::move(reply));
         });
}

void LocalControl::WaitJob(const CallContext& context, const v1::WaitJobRequest& request,
                           Reply<v1::Job> reply) {
  OnLoop(context, request, std::move(reply),
         [jobs = parts_.scheduler](const auto& c, const auto& r, auto reply) {
           jobs->WaitJob(c, r, std::move(reply));
         });
}

void LocalControl::CancelJob(const CallContext& context, const v1::CancelJobRequest& request,
                             Reply<v1::Job> reply) {
  OnLoop(context, request, std::move(reply),
         [jobs = parts_.scheduler](const auto& c, const auto& r, auto reply) {
           jobs->CancelJob(c, r, std::move(reply));
         });
}

void LocalControl::ListJobs(const CallContext& context, const v1::ListJobsRequest& request,
                            Reply<v1::ListJobsResponse> reply) {
  OnLoop(context, request, std::move(reply),
         [jobs = parts_.scheduler](const auto& c, const auto& r, auto reply) {
           jobs->ListJobs(c, r, std::move(reply));
         });
}

void LocalControl::PollJob(const CallContext& context, const v1::PollJobRequest& request,
                           Reply<v1::PollJobResponse> reply) {
  OnLoop(context, request, std::move(reply),
         [jobs = parts_.scheduler](const auto& c, const auto& r, auto reply) {
           jobs->PollJob(c, r, std::move(reply));
         });
}

}  // namespace agmm
