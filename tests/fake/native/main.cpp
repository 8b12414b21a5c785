// native FILE [TEST]       runs the tests of one file, or one of them
// native order NAME SEED   runs a program under a schedule and prints in which order its operations ran
#include <cstdlib>
#include <exception>
#include <iostream>

#include "program.h"

namespace native {
namespace {

// Leaves the device as a test expects it, whatever the last one did.
void reset() {
  device().set_schedule("in-order", 0);
  try {
    device().drain();
  } catch (const DeviceError&) {  // a failure that the test left unreported
  }
  device().set_capacity(4096);
  device().set_hold_timeout(20);
  device().set_block_hooks(nullptr, nullptr);
  device().set_describe_source(nullptr);
  device().reset_counters();
}

bool run(const Test& test, const std::string& schedule) {
  std::string failure;
  try {
    reset();
    if (test.once != nullptr) {
      test.once();
    } else {
      device().set_schedule(schedule, 7);
      test.per_schedule(schedule);
    }
    reset();
    CHECK_EQUAL(device().pending(), 0U);
    return true;
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = "an exception of an unknown type";
  }
  std::cout << "FAILED " << test.name << (schedule.empty() ? "" : " under ") << schedule << "\n  " << failure
            << std::endl;
  return false;
}

// "a/b/test_order.cpp" -> "test_order"
std::string stem(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  const std::string file = slash == std::string::npos ? path : path.substr(slash + 1);
  return file.substr(0, file.find('.'));
}

int run_file(const std::string& file, const std::string& only) {
  int ran = 0;
  for (const Test& test : all_tests()) {
    if (stem(test.file) != file || (!only.empty() && test.name != only)) continue;
    const std::vector<std::string> schedules = test.once != nullptr ? std::vector<std::string>{""} : schedule_names();
    for (const std::string& schedule : schedules) {
      ++ran;
      // The first failure is the last: work that it left queued may refer to what went with it.
      if (!run(test, schedule)) std::_Exit(1);
    }
  }
  std::cout << ran << " passed" << std::endl;
  return ran > 0 ? 0 : 1;
}

int print_order(const std::string& schedule, std::uint64_t seed) {
  reset();
  device().set_schedule(schedule, seed);
  Program program(1, 6, 300, true);
  program.submit();
  device().drain();
  std::cout << text(program.log()) << std::endl;
  return program.broken_rule().empty() ? 0 : 1;
}

}  // namespace
}  // namespace native

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (words.size() == 3 && words[0] == "order") return native::print_order(words[1], std::stoull(words[2]));
  if (words.size() == 1 || words.size() == 2) return native::run_file(words[0], words.size() == 2 ? words[1] : "");
  std::cerr << "usage: native FILE [TEST] | native order SCHEDULE SEED\n";
  return 2;
}
