package cpu

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

func readQuota() float64 {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0
	}
	return quotaOf(string(self), string(mounts), func(file string) string {
		b, _ := os.ReadFile(file) // one that is not there sets no limit
		return string(b)
	})
}

// quotaOf finds the least limit of a process's control groups and of those above them. self and mounts are the texts of /proc/self/cgroup and
// /proc/self/mountinfo; read gives a file's text.
func quotaOf(self, mounts string, read func(file string) string) float64 {
	least := 0.0
	limit := func(have, period string) {
		h, err1 := strconv.ParseFloat(have, 64)
		p, err2 := strconv.ParseFloat(period, 64)
		if err1 == nil && err2 == nil && h > 0 && p > 0 && (least == 0 || h/p < least) {
			least = h / p
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(self), "\n") {
		parts := strings.SplitN(line, ":", 3) // number, controllers, group
		if len(parts) != 3 {
			continue
		}
		second := parts[1] == ""
		if !second && !has(parts[1], "cpu") {
			continue
		}
		point, root := mountOf(mounts, second)
		if point == "" {
			continue
		}
		group, inside := strings.CutPrefix(parts[2], strings.TrimSuffix(root, "/"))
		if !inside { // the process was moved out of what is mounted: only the mount's own limit is to be seen
			group = "/"
		}
		for g := path.Clean("/" + group); ; g = path.Dir(g) {
			dir := path.Join(point, g)
			if second {
				if f := strings.Fields(read(dir + "/cpu.max")); len(f) == 2 {
					limit(f[0], f[1]) // "max" is no number, and no limit
				}
			} else {
				limit(strings.TrimSpace(read(dir+"/cpu.cfs_quota_us")), strings.TrimSpace(read(dir+"/cpu.cfs_period_us")))
			}
			if g == "/" {
				break
			}
		}
	}
	return least
}

// mountOf is where the tree of control groups is mounted that limits processor time, and which group its top is; of version 2 or of version 1.
func mountOf(mounts string, second bool) (point, root string) {
	for _, line := range strings.Split(mounts, "\n") {
		// 36 35 98:0 ROOT POINT options [optional fields] - TYPE source super-options
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		if second && r[0] == "cgroup2" || !second && r[0] == "cgroup" && has(r[2], "cpu") {
			return unescape.Replace(l[4]), unescape.Replace(l[3])
		}
	}
	return "", ""
}

// unescape undoes what mountinfo does to paths.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// has reports whether a list with commas has a word.
func has(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }
