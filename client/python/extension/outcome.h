// Outcomes of jobs, for callables of Python.
#pragma once

#include "agmm/agmm.h"
#include "extension/callback.h"

namespace agmm::python {

// Calls the callable on_end(fields, error) with the fields of the job that succeeded, or with the
// exception that a wait would raise, and None for the other. Drops the callables. An exception of
// the callable goes to sys.unraisablehook.
void TellOutcome(Callbacks& callbacks, const Result<JobInfo>& job, int index = -1);

}  // namespace agmm::python
