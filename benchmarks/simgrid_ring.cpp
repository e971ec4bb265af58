// A ring all-reduce by hand in SimGrid's S4U, an actor a rank, in its fluid model without TCP's factors: a peer to
// measure simcoll against. Arguments: ranks, bytes of a chunk, B/s and seconds of a link.

#include <simgrid/s4u.hpp>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

static void rank(int me, int n, double bytes)
{
  auto* mine   = sg4::Mailbox::by_name(std::to_string(me));
  auto* next   = sg4::Mailbox::by_name(std::to_string((me + 1) % n));
  static int chunk;
  for (int step = 0; step < 2 * (n - 1); step++) {
    auto sent = next->put_async(&chunk, static_cast<uint64_t>(bytes));
    mine->get<int>();
    sent->wait();
  }
}

int main(int argc, char** argv)
{
  sg4::Engine engine(&argc, argv);
  for (const char* key : {"network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0", "network/weight-S:0",
                          "network/latency-factor:1", "network/bandwidth-factor:1", "surf/precision:1e-12"})
    sg4::Engine::set_config(key);
  const int n        = std::stoi(argv[1]);
  const double bytes = std::stod(argv[2]), bandwidth = std::stod(argv[3]), latency = std::stod(argv[4]);

  const auto began       = std::chrono::steady_clock::now();
  const std::clock_t cpu = std::clock();
  auto* star       = sg4::create_star_zone("star");
  for (int i = 0; i < n; i++) {
    auto* host = star->create_host("host" + std::to_string(i), 1e9);
    auto* link = star->create_split_duplex_link("link" + std::to_string(i), bandwidth)->set_latency(latency);
    link->seal();
    star->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {{link, sg4::LinkInRoute::Direction::UP}}, true);
  }
  star->seal();
  for (int i = 0; i < n; i++)
    sg4::Actor::create(std::to_string(i), engine.host_by_name("host" + std::to_string(i)), rank, i, n, bytes);
  engine.run();

  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
  const double busy                        = 1.0 * (std::clock() - cpu) / CLOCKS_PER_SEC;
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  std::printf("{\"s\": %.6f, \"cpu s\": %.6f, \"MB\": %.1f, \"time_ps\": %.0f}\n", wall.count(), busy,
              used.ru_maxrss / 1024.0, sg4::Engine::get_clock() * 1e12);
}
