// Messages over given routes in SimGrid's S4U, an actor a message, in its fluid model without TCP's factors: a peer to
// compare simcoll with on any topology. From stdin, as numbers:
//
//   hosts links routes messages
//   of each link: B/s seconds          of each route: from to count link …
//   of each message: from to bytes count message …     (those that must have arrived before it starts)
//
// Prints the makespan in ps.

#include <simgrid/s4u.hpp>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

struct Message {
  int from, to;
  double bytes;
  std::vector<int> before;
  sg4::SemaphorePtr arrived = sg4::Semaphore::create(0);
  int waiting               = 0;
};

static std::vector<Message> messages;
static std::vector<sg4::Host*> hosts;

static void carry(int index)
{
  auto& own = messages[index];
  for (int other : own.before)
    messages[other].arrived->acquire();
  sg4::Comm::sendto(hosts[own.from], hosts[own.to], static_cast<uint64_t>(own.bytes));
  for (int i = 0; i < own.waiting; i++)
    own.arrived->release();
}

int main(int argc, char** argv)
{
  sg4::Engine engine(&argc, argv);
  for (const char* key : {"network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0", "network/weight-S:0",
                          "network/latency-factor:1", "network/bandwidth-factor:1", "surf/precision:1e-12"})
    sg4::Engine::set_config(key);
  int n_hosts, n_links, n_routes, n_messages;
  std::cin >> n_hosts >> n_links >> n_routes >> n_messages;
  auto* zone = sg4::create_full_zone("zone");
  for (int i = 0; i < n_hosts; i++)
    hosts.push_back(zone->create_host(std::to_string(i), 1e9));
  std::vector<sg4::Link*> links;
  for (int i = 0; i < n_links; i++) {
    double bandwidth, latency;
    std::cin >> bandwidth >> latency;
    links.push_back(zone->create_link("link" + std::to_string(i), bandwidth)->set_latency(latency)->seal());
  }
  for (int i = 0; i < n_routes; i++) {
    int from, to, count, link;
    std::cin >> from >> to >> count;
    std::vector<sg4::LinkInRoute> way;
    for (int k = 0; k < count; k++) {
      std::cin >> link;
      way.emplace_back(links[link]);
    }
    zone->add_route(hosts[from]->get_netpoint(), hosts[to]->get_netpoint(), nullptr, nullptr, way, false);
  }
  zone->seal();
  messages.resize(n_messages);
  for (auto& each : messages) {
    int count;
    std::cin >> each.from >> each.to >> each.bytes >> count;
    each.before.resize(count);
    for (int& other : each.before) {
      std::cin >> other;
      messages[other].waiting++;
    }
  }
  for (int i = 0; i < n_messages; i++)
    sg4::Actor::create(std::to_string(i), hosts[messages[i].from], carry, i);
  engine.run();
  std::printf("%.0f\n", sg4::Engine::get_clock() * 1e12);
}
