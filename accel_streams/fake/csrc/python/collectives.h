// Collectives as NCCL has them: each runs on its communicator's own stream, which waits for the stream that was
// current at the call, and Work.wait() makes the current stream wait, never the host.
#pragma once

namespace pybind11 {
class module_;
}

namespace accel_streams::fake {

void bind_collectives(pybind11::module_& m);

}  // namespace accel_streams::fake
