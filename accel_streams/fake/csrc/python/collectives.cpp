#include "collectives.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <utility>

#include "../torch/compat.h"
#include "../torch/glue.h"

namespace py = pybind11;

namespace accel_streams::fake {
namespace {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using WorkRef = c10::intrusive_ptr<c10d::Work>;

// The communicators' streams and the names they have in reports. Guarded by the runtime's lock.
std::vector<std::pair<StreamKey, std::string>>& stream_labels() {
  static auto* const labels = new std::vector<std::pair<StreamKey, std::string>>();
  return *labels;
}

// The device's side of a collective: begin hands the memory to the transport, finish waits for it.
class Transfer final : public Asynchronous {
 public:
  Transfer(std::function<WorkRef()> issue, std::function<void()> complete)
      : issue_(std::move(issue)), complete_(std::move(complete)) {}

  void begin() override {
    const PlainCpuScope plain;
    work_ = issue_();
  }
  void finish() override {
    if (work_ == nullptr) return;  // begin failed, and said so
    work_->wait();
    const PlainCpuScope plain;
    if (complete_) complete_();
  }

 private:
  std::function<WorkRef()> issue_;
  std::function<void()> complete_;
  WorkRef work_;
};

class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(int rank, OpType type, int device, StreamKey stream, PointRef done, Tensors stash, Tensors outputs,
             bool blocks_host)
      : c10d::Work(rank, type),
        device_(device),
        stream_(stream),
        done_(std::move(done)),
        stash_(std::move(stash)),
        outputs_(std::move(outputs)),
        blocks_host_(blocks_host) {}

  ~DeviceWork() override {
    // Nobody waited: the memory may go back only when the communicator's stream is through with it.
    for (const at::Tensor& tensor : stash_) {
      if (const auto block = block_of(tensor.storage())) Memory::instance().record_stream(block, stream_);
    }
  }
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  bool isCompleted() override { return Runtime::instance().query_point(done_, capture_source()); }
  bool isSuccess() const override { return true; }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds = std::chrono::milliseconds(0)) override {
    Runtime& runtime = Runtime::instance();
    const StreamKey current = current_stream(device_);
    const SourceId place = capture_source();
    runtime.wait(current, done_, place);
    stash_.clear();  // the current stream is ordered after the use, and the memory belongs to it
    if (blocks_host_) {
      runtime.count_synchronization("fccl::barrier");
      runtime.synchronize_stream(current, "fccl::barrier", place);
    }
    return true;
  }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        std::vector<c10::Device>{c10::Device(kFake, static_cast<c10::DeviceIndex>(device_))});
    const StreamKey previous = exchange_current_stream(stream_);  // the future's event belongs on our stream
    future->markCompleted(c10::IValue(outputs_));
    exchange_current_stream(previous);
    return future;
  }

 private:
  int device_;
  StreamKey stream_;
  PointRef done_;
  Tensors stash_;
  Tensors outputs_;
  bool blocks_host_;
};

Tensors aliases(const Tensors& tensors) {
  Tensors out;
  for (const at::Tensor& tensor : tensors) out.push_back(alias_on_cpu(tensor));
  return out;
}

void check_contiguous(const char* name, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.is_contiguous(), name, ": expected contiguous tensors, got one of shape ", tensor.sizes(),
                " with strides ", tensor.strides(), "; call .contiguous() first");
    TORCH_CHECK(tensor.device().type() == kFake, name, ": expected tensors on the fake device, got one on ",
                tensor.device());
  }
}

Tensors flattened(const std::vector<Tensors>& lists) {
  Tensors out;
  for (const Tensors& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

class Communicator final : public c10d::Backend {
 public:
  Communicator(c10::intrusive_ptr<c10d::Backend> transport, int rank, int size, std::string label)
      : c10d::Backend(rank, size), transport_(std::move(transport)), label_(std::move(label)) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Communicator(Communicator&&) = delete;
  Communicator& operator=(Communicator&&) = delete;

  ~Communicator() override {
    // The transport's end waits for its threads, and they for the interpreter's lock, when it falls to them to let
    // go of a tensor.
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
      const py::gil_scoped_release no_gil;
      transport_.reset();
    }
  }

  const std::string getBackendName() const override { return "fccl"; }
  bool supportsCoalescing() const /* new in 2.7 */ { return true; }
  void setTimeout(std::chrono::milliseconds timeout) /* new in 2.7 */ { set_timeout(*transport_, timeout, 0); }
  void setSequenceNumberForGroup() override { transport_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override { return transport_->getSequenceNumberForGroup(); }

  WorkRef allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    if (on_host(tensors)) return transport_->allreduce(tensors, options);
    c10d::AllreduceOptions inner = options;
    const bool average = take_average(inner.reduceOp);
    Tensors memory = aliases(tensors);
    return submit("fccl::all_reduce", OpType::ALLREDUCE, tensors, tensors,
                  [this, memory, inner]() mutable { return transport_->allreduce(memory, inner); },
                  [this, memory, average] { divide(memory, average); });
  }

  WorkRef allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    WorkRef last;
    for (at::Tensor& tensor : tensors) {
      Tensors one{tensor};
      last = allreduce(one, options);
    }
    return last;
  }

  WorkRef broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    if (on_host(tensors)) return transport_->broadcast(tensors, options);
    Tensors memory = aliases(tensors);
    const bool root = options.rootRank == getRank();
    return submit("fccl::broadcast", OpType::BROADCAST, root ? tensors : Tensors{}, root ? Tensors{} : tensors,
                  [this, memory, options]() mutable { return transport_->broadcast(memory, options); });
  }

  WorkRef reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    if (on_host(tensors)) return transport_->reduce(tensors, options);
    c10d::ReduceOptions inner = options;
    const bool average = take_average(inner.reduceOp);
    const bool root = options.rootRank == getRank();
    Tensors memory = aliases(tensors);
    return submit("fccl::reduce", OpType::REDUCE, tensors, root ? tensors : Tensors{},
                  [this, memory, inner, root]() mutable {
                    // The transport uses the buffer of every rank as scratch; only the root's may change.
                    if (!root) memory = {memory.front().clone()};
                    return transport_->reduce(memory, inner);
                  },
                  [this, memory, average, root] {
                    if (root) divide(memory, average);
                  });
  }

  WorkRef allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    if (on_host(inputs)) return transport_->allgather(outputs, inputs, options);
    return gather_into(outputs.front(), inputs.front(), options);
  }

  WorkRef _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    if (on_host({input})) return transport_->_allgather_base(output, input, options);
    return gather_into(parts(output, input.sizes().vec()), input, options);
  }

  WorkRef allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    WorkRef last;
    for (std::size_t i = 0; i < inputs.size(); ++i) last = _allgather_base(outputs[i], inputs[i], options);
    return last;
  }

  WorkRef reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    if (on_host(outputs)) return transport_->reduce_scatter(outputs, inputs, options);
    return scatter_sum(outputs.front(), inputs.front(), options);
  }

  WorkRef _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    if (on_host({input})) return transport_->_reduce_scatter_base(output, input, options);
    return scatter_sum(output, parts(input, output.sizes().vec()), options);
  }

  WorkRef reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    WorkRef last;
    for (std::size_t i = 0; i < inputs.size(); ++i) last = _reduce_scatter_base(outputs[i], inputs[i], options);
    return last;
  }

  WorkRef gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    if (on_host(inputs)) return transport_->gather(outputs, inputs, options);
    std::vector<Tensors> received;
    for (const Tensors& list : outputs) received.push_back(aliases(list));
    Tensors sent = aliases(inputs);
    return submit("fccl::gather", OpType::GATHER, inputs, flattened(outputs),
                  [this, received, sent, options]() mutable { return transport_->gather(received, sent, options); });
  }

  WorkRef scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    if (on_host(outputs)) return transport_->scatter(outputs, inputs, options);
    std::vector<Tensors> sent;
    for (const Tensors& list : inputs) sent.push_back(aliases(list));
    Tensors received = aliases(outputs);
    return submit("fccl::scatter", OpType::SCATTER, flattened(inputs), outputs,
                  [this, received, sent, options]() mutable { return transport_->scatter(received, sent, options); });
  }

  WorkRef alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    if (on_host({input})) return transport_->alltoall_base(output, input, output_sizes, input_sizes, options);
    return submit("fccl::all_to_all", OpType::ALLTOALL_BASE, {input}, {output},
                  [this, to = alias_on_cpu(output), from = alias_on_cpu(input), output_sizes, input_sizes,
                   options]() mutable { return transport_->alltoall_base(to, from, output_sizes, input_sizes, options); });
  }

  WorkRef alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    if (on_host(inputs)) return transport_->alltoall(outputs, inputs, options);
    std::vector<std::int64_t> received_sizes;
    std::vector<std::int64_t> sent_sizes;
    for (const at::Tensor& tensor : outputs) received_sizes.push_back(tensor.numel());
    for (const at::Tensor& tensor : inputs) sent_sizes.push_back(tensor.numel());
    const Tensors to = aliases(outputs);
    const Tensors from = aliases(inputs);
    auto received = std::make_shared<at::Tensor>();
    return submit("fccl::all_to_all", OpType::ALLTOALL, inputs, outputs,
                  [this, to, from, received, received_sizes, sent_sizes, options]() mutable {
                    at::Tensor sent = joined(from);
                    *received = joined(to);
                    return transport_->alltoall_base(*received, sent, received_sizes, sent_sizes, options);
                  },
                  [to, received] {
                    std::int64_t at = 0;
                    for (const at::Tensor& tensor : to) {
                      tensor.copy_(received->narrow(0, at, tensor.numel()).view(tensor.sizes()));
                      at += tensor.numel();
                    }
                  });
  }

  WorkRef send(Tensors& tensors, int to, int tag) override {
    if (on_host(tensors)) return transport_->send(tensors, to, tag);
    return submit("fccl::send", OpType::SEND, tensors, {},
                  [this, memory = aliases(tensors), to, tag]() mutable { return transport_->send(memory, to, tag); });
  }

  WorkRef recv(Tensors& tensors, int from, int tag) override {
    if (on_host(tensors)) return transport_->recv(tensors, from, tag);
    return submit("fccl::recv", OpType::RECV, {}, tensors,
                  [this, memory = aliases(tensors), from, tag]() mutable { return transport_->recv(memory, from, tag); });
  }

  WorkRef barrier(const c10d::BarrierOptions& options) override {
    return submit("fccl::barrier", OpType::BARRIER, {}, {}, [this, options] { return transport_->barrier(options); }, {},
                  true);
  }

  void startCoalescing() override { coalescing_ = true; }
  WorkRef endCoalescing() override {
    coalescing_ = false;
    const int device = current_device();
    const StreamKey stream = stream_of(device);
    Tensors stash = std::exchange(coalesced_, {});
    return c10::make_intrusive<DeviceWork>(getRank(), OpType::COALESCED, device, stream,
                                           Runtime::instance().record(stream, true, capture_source()), std::move(stash),
                                           Tensors{}, false);
  }

 private:
  // Collectives on CPU tensors go straight to the transport. Peers may be waiting for device collectives that
  // are still queued here, so those run first.
  bool on_host(const Tensors& tensors) const {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.device().is_cpu()) return false;
    }
    Runtime& runtime = Runtime::instance();
    if (runtime.pending() > 0) {
      runtime.count_synchronization("fccl: collective on CPU tensors");
      runtime.drain();
    }
    return true;
  }

  // The transport has no average: sum, then divide.
  static bool take_average(c10d::ReduceOp& op) {
    if (op != c10d::ReduceOp::AVG) return false;
    op = c10d::ReduceOp::SUM;
    return true;
  }
  void divide(const Tensors& tensors, bool average) const {
    if (!average) return;
    for (const at::Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_floating_point(), "fccl: an average of ", tensor.scalar_type(), " is not defined");
      tensor.div_(getSize());
    }
  }

  static at::Tensor joined(const Tensors& tensors) {
    Tensors flat;
    for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
    return at::cat(flat);
  }

  // `whole` as one tensor a rank.
  Tensors parts(const at::Tensor& whole, const std::vector<std::int64_t>& sizes) const {
    TORCH_CHECK(whole.numel() % getSize() == 0, "fccl: a tensor of ", whole.numel(), " elements can't be split between ",
                getSize(), " ranks");
    TORCH_CHECK(whole.is_contiguous(), "fccl: expected a contiguous tensor, got strides ", whole.strides());
    const std::int64_t each = whole.numel() / getSize();
    Tensors out;
    const at::Tensor flat = whole.view({-1});
    for (int rank = 0; rank < getSize(); ++rank) out.push_back(flat.narrow(0, rank * each, each).view(sizes));
    return out;
  }

  WorkRef gather_into(const Tensors& outputs, const at::Tensor& input, const c10d::AllgatherOptions& options) {
    Tensors written = outputs;
    return submit("fccl::all_gather", OpType::ALLGATHER, {input}, written,
                  [this, to = std::vector<Tensors>{aliases(outputs)}, from = Tensors{alias_on_cpu(input)},
                   options]() mutable { return transport_->allgather(to, from, options); });
  }

  WorkRef scatter_sum(const at::Tensor& output, const Tensors& inputs, const c10d::ReduceScatterOptions& options) {
    c10d::AllreduceOptions inner;
    inner.reduceOp = options.reduceOp;
    const bool average = take_average(inner.reduceOp);
    auto sum = std::make_shared<at::Tensor>();
    return submit("fccl::reduce_scatter", OpType::REDUCE_SCATTER, inputs, {output},
                  [this, from = aliases(inputs), sum, inner] {
                    *sum = joined(from);
                    Tensors all{*sum};
                    return transport_->allreduce(all, inner);
                  },
                  [this, to = alias_on_cpu(output), sum, average] {
                    to.copy_(sum->narrow(0, getRank() * to.numel(), to.numel()).view(to.sizes()));
                    divide({to}, average);
                  });
  }

  StreamKey stream_of(int device) {
    const auto found = streams_.find(device);
    if (found != streams_.end()) return found->second;
    const StreamKey stream = Runtime::instance().new_stream(device, 0);
    const auto guard = Runtime::instance().lock();
    stream_labels().emplace_back(stream, label_);
    return streams_[device] = stream;
  }

  WorkRef submit(const char* name, OpType type, const Tensors& read, const Tensors& written,
                 std::function<WorkRef()> issue, std::function<void()> complete = {}, bool blocks_host = false) {
    check_contiguous(name, read);
    check_contiguous(name, written);
    const int device = !read.empty()      ? read.front().device().index()
                       : !written.empty() ? written.front().device().index()
                                          : current_device();
    Runtime& runtime = Runtime::instance();
    const SourceId place = capture_source();
    const StreamKey stream = stream_of(device);
    runtime.wait(stream, runtime.record(current_stream(device), true, place), place);
    Launch launch;
    launch.name = name;
    for (const at::Tensor& tensor : read) add_access(launch.accesses, tensor, Mode::Read);
    for (const at::Tensor& tensor : written) add_access(launch.accesses, tensor, Mode::Write);
    launch.async = std::make_unique<Transfer>(std::move(issue), std::move(complete));
    launch.source = place;
    runtime.launch(stream, std::move(launch));
    Tensors stash = read;
    stash.insert(stash.end(), written.begin(), written.end());
    if (coalescing_) coalesced_.insert(coalesced_.end(), stash.begin(), stash.end());
    return c10::make_intrusive<DeviceWork>(getRank(), type, device, stream, runtime.record(stream, true, place),
                                           std::move(stash), written, blocks_host);
  }

  c10::intrusive_ptr<c10d::Backend> transport_;
  std::string label_;
  std::map<int, StreamKey> streams_;
  bool coalescing_ = false;
  Tensors coalesced_;
};

}  // namespace

void bind_collectives(pybind11::module_& m) {
  m.def("create_communicator",
        [](const c10::intrusive_ptr<c10d::Backend>& transport, int rank, int size, const std::string& label)
            -> c10::intrusive_ptr<c10d::Backend> {
          return c10::make_intrusive<Communicator>(transport, rank, size, label);
        });
  m.def("communicator_streams", [] {
    std::vector<std::pair<StreamKey, std::string>> labels;
    {
      const py::gil_scoped_release no_gil;
      const auto guard = Runtime::instance().lock();
      labels = stream_labels();
    }
    py::list out;
    for (const auto& [key, label] : labels) out.append(py::make_tuple(key.device, key.id, label));
    return out;
  });
}

}  // namespace accel_streams::fake
