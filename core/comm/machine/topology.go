package machine

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Interface is a network interface of this machine.
type Interface struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	Mbit      int      `json:"mbit"` // speed of the link; 0 where it is not known
	Up        bool     `json:"up"`
	Loopback  bool     `json:"loopback,omitempty"`
}

// Node is a NUMA node of this machine.
type Node struct {
	ID   int    `json:"id"`
	CPUs string `json:"cpus"` // as the kernel writes lists: 0-3,8
	MiB  int    `json:"mib"`
}

// Topology is what decides how ranks are placed and connected. Discover reads it; a cluster file or flags go before it.
type Topology struct {
	Host         string      `json:"host"` // identity, as ranks compare it
	Nodes        []Node      `json:"numa_nodes"`
	Interfaces   []Interface `json:"interfaces"`
	RemoteMemory []string    `json:"rdma_devices"` // networks with remote access to memory, such as InfiniBand
	GPUs         []string    `json:"gpus"`         // PCI addresses
}

// Discover reads this machine's topology; what cannot be read is left out. sys is the root of the system's files, "/sys".
func Discover(sys string) Topology {
	t := Topology{Host: ID(), RemoteMemory: RemoteMemoryDevices(sys)}
	devices, _ := net.Interfaces()
	for _, d := range devices {
		i := Interface{Name: d.Name, Up: d.Flags&net.FlagUp != 0, Loopback: d.Flags&net.FlagLoopback != 0}
		if n := LinkSpeed(sys, d.Name); n > 1 {
			i.Mbit = n
		}
		addrs, _ := d.Addrs()
		for _, a := range addrs {
			i.Addresses = append(i.Addresses, a.String())
		}
		t.Interfaces = append(t.Interfaces, i)
	}
	nodes, _ := filepath.Glob(sys + "/devices/system/node/node[0-9]*")
	for _, dir := range nodes {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue
		}
		n := Node{ID: id, CPUs: readLine(dir + "/cpulist")}
		if text, err := os.ReadFile(dir + "/meminfo"); err == nil {
			for line := range strings.Lines(string(text)) {
				var node, kib int
				if _, err := fmt.Sscanf(line, "Node %d MemTotal: %d kB", &node, &kib); err == nil {
					n.MiB = kib >> 10
				}
			}
		}
		t.Nodes = append(t.Nodes, n)
	}
	slices.SortFunc(t.Nodes, func(a, b Node) int { return a.ID - b.ID })
	const display, accelerator = "0x03", "0x12"
	cards, _ := filepath.Glob(sys + "/bus/pci/devices/*")
	for _, dir := range cards {
		class := readLine(dir + "/class")
		vendor := readLine(dir + "/vendor")
		if (strings.HasPrefix(class, display) || strings.HasPrefix(class, accelerator)) && (vendor == "0x10de" || vendor == "0x1002") {
			t.GPUs = append(t.GPUs, filepath.Base(dir))
		}
	}
	return t
}

// RemoteMemoryDevices names the devices of networks with remote access to memory (InfiniBand, RoCE, …).
func RemoteMemoryDevices(sys string) []string {
	entries, err := os.ReadDir(sys + "/class/infiniband")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// LinkSpeed returns the speed of an interface as a system's files below root give it, in Mbit/s: 1 where it is not known, as
// with virtual ones, 0 for the bridges by which containers are connected within their machine.
func LinkSpeed(root, device string) int {
	base := root + "/class/net/" + device
	if _, err := os.Stat(base + "/bridge"); err == nil {
		return 0
	}
	b, err := os.ReadFile(base + "/speed")
	if err != nil {
		return 1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n < 1 {
		return 1
	}
	return n
}
