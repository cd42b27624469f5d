package machine

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// TestDiscover reads the files of a machine with two NUMA nodes, an InfiniBand device and a GPU.
func TestDiscover(t *testing.T) {
	sys := t.TempDir()
	for path, text := range map[string]string{
		"devices/system/node/node0/cpulist":   "0-3,8\n",
		"devices/system/node/node0/meminfo":   "Node 0 MemTotal:       2097152 kB\nNode 0 MemFree:  7 kB\n",
		"devices/system/node/node10/cpulist":  "4-7\n",
		"devices/system/node/possible":        "0,10\n",
		"class/infiniband/mlx5_0/node_type":   "1: CA\n",
		"class/net/eth7/speed":                "25000\n",
		"class/net/veth1/speed":               "-1\n",
		"class/net/docker0/speed":             "10000\n",
		"class/net/docker0/bridge/x":          "",
		"bus/pci/devices/0000:17:00.0/class":  "0x030200\n",
		"bus/pci/devices/0000:17:00.0/vendor": "0x10de\n",
		"bus/pci/devices/0000:00:02.0/class":  "0x030000\n",
		"bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
	} {
		path = filepath.Join(sys, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := Discover(sys)
	if want := []Node{{0, "0-3,8", 2048}, {10, "4-7", 0}}; !reflect.DeepEqual(d.Nodes, want) {
		t.Errorf("nodes %v, want %v", d.Nodes, want)
	}
	if want := []string{"mlx5_0"}; !reflect.DeepEqual(d.RemoteMemory, want) {
		t.Errorf("RDMA devices %v, want %v", d.RemoteMemory, want)
	}
	if want := []string{"0000:17:00.0"}; !reflect.DeepEqual(d.GPUs, want) {
		t.Errorf("GPUs %v, want %v", d.GPUs, want)
	}
	if len(d.Interfaces) == 0 {
		t.Error("no interfaces")
	}
	for name, want := range map[string]int{"eth7": 25000, "veth1": 1, "docker0": 0, "none": 1} {
		if got := LinkSpeed(sys, name); got != want {
			t.Errorf("%s has speed %d, want %d", name, got, want)
		}
	}
	if d := Discover(filepath.Join(sys, "nothing")); d.Nodes != nil || d.GPUs != nil || d.RemoteMemory != nil {
		t.Errorf("nothing is %+v", d)
	}
}
