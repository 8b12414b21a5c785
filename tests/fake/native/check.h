// The least that a test needs: named tests that register themselves, and checks that say where they failed.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace native {

class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Test {
  std::string file;
  std::string name;
  void (*once)() = nullptr;
  void (*per_schedule)(const std::string& schedule) = nullptr;
};

inline std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  explicit Registration(Test test) { all_tests().push_back(std::move(test)); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw CheckFailed(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <class A, class B>
void check_equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " and " << b;
  fail(file, line, out.str());
}

}  // namespace native

// A test that runs once.
#define TEST(test)                                                                          \
  static void test();                                                                       \
  static const native::Registration registration_of_##test{{__FILE__, #test, &test, nullptr}}; \
  static void test()

// A test that runs under every schedule; the name of the present one is `schedule`.
#define TEST_EACH_SCHEDULE(test)                                                            \
  static void test(const std::string& schedule);                                            \
  static const native::Registration registration_of_##test{{__FILE__, #test, nullptr, &test}}; \
  static void test([[maybe_unused]] const std::string& schedule)

#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) native::fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define CHECK_EQUAL(a, b) native::check_equal(__FILE__, __LINE__, #a " == " #b, (a), (b))

// That `statement` throws `type` with `part` in its text.
#define CHECK_THROWS(type, part, statement)                                                        \
  do {                                                                                             \
    std::string check_text;                                                                        \
    bool check_thrown = false;                                                                     \
    try {                                                                                          \
      statement;                                                                                   \
    } catch (const type& check_error) {                                                            \
      check_thrown = true;                                                                         \
      check_text = check_error.what();                                                             \
    }                                                                                              \
    if (!check_thrown) native::fail(__FILE__, __LINE__, #statement " threw no " #type);            \
    if (check_text.find(part) == std::string::npos)                                                \
      native::fail(__FILE__, __LINE__, #statement " threw '" + check_text + "'");                  \
  } while (false)
