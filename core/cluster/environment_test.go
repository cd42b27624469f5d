//go:build unix

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEnvironment(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{"", "<nil>"},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=x", "mpirun 1/2 tcp:127.0.0.1:" + port("x")},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1", "mpirun 1/2 "},
		{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", "<nil>"},
		{"SLURM_PROCID=3 SLURM_NTASKS=4", "<nil>"}, // a batch script, not one of its tasks
		{"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=gpu[03-05,7] SLURM_JOB_ID=12 SLURM_STEP_ID=0", "srun 3/4 tcp:gpu03:" + port("12.0")},
		{"RANK=1 WORLD_SIZE=2 MASTER_ADDR=node0", "RANK and WORLD_SIZE 1/2 tcp:node0:29500"},
		{"RANK=1 WORLD_SIZE=2 MASTER_ADDR=fd00::1 MASTER_PORT=7", "RANK and WORLD_SIZE 1/2 tcp:[fd00::1]:7"},
		{"RANK=1 WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=4567 TORCHELASTIC_RUN_ID=x TORCHELASTIC_USE_AGENT_STORE=True", "RANK and WORLD_SIZE 1/2 tcp:node0:" + port("xnode04567")},
		{"RANK=1 WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=4567 TORCHELASTIC_USE_AGENT_STORE=False", "RANK and WORLD_SIZE 1/2 tcp:node0:4567"},
		{"JOB_COMPLETION_INDEX=1 WORLD_SIZE=2 STARLING_RENDEZVOUS=job-0.job:29400", "JOB_COMPLETION_INDEX and WORLD_SIZE 1/2 tcp:job-0.job:29400"},
		{"RANK=2 WORLD_SIZE=2", "error"},
		{"RANK=one WORLD_SIZE=2", "error"},
		{"RANK=0", "error"}, // each of such processes would train by itself
		{"WORLD_SIZE=2", "error"},
		{"STARLING_RENDEZVOUS=job-0.job:29400", "error"},
		{"RANK=0 WORLD_SIZE=2 STARLING_RENDEZVOUS=job-0.job", "error"}, // no port
		{"RANK=0 WORLD_SIZE=2 STARLING_RENDEZVOUS=job-0.job:0", "error"},
		{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=http", "error"},
		{"JOB_COMPLETION_INDEX=0", "<nil>"}, // every pod of an indexed job has it
	} {
		env := map[string]string{}
		for _, f := range strings.Fields(c.env) {
			k, v, _ := strings.Cut(f, "=")
			env[k] = v
		}
		s, err := Environment(func(k string) string { return env[k] })
		got := "<nil>"
		if err != nil {
			got = "error"
		} else if s != nil {
			got = fmt.Sprintf("%s %d/%d %s", s.By, s.Number, s.World, s.Address)
		}
		if got != c.want {
			t.Errorf("%s: %s (%v), want %s", c.env, got, err, c.want)
		}
	}
	for list, want := range map[string]string{"a": "a", "a,b": "a", "a[1-3]": "a1", "a[01,03-4],b": "a01", "a[7]-ib,b": "a7-ib", "login,a[1-3]": "login", "": ""} {
		if got := firstHost(list); got != want {
			t.Errorf("the first of %q is %q, want %q", list, got, want)
		}
	}
}

func TestTakeSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(testSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, []byte(testSecret), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, file, want string }{{testSecret, "", testSecret}, {"", file, testSecret}, {"short", "", ""}, {"", file + "x", ""}, {"", open, ""}, {"", "", ""}} {
		t.Setenv(envSecret, c.text)
		t.Setenv(envSecretFile, c.file)
		got, err := TakeSecret()
		if string(got) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
		if c.file == open && !strings.Contains(fmt.Sprint(err), "chmod 600 "+open) {
			t.Errorf("a file that all can read: %v", err)
		}
		if err != nil && c.text != "" && strings.Contains(err.Error(), c.text) {
			t.Errorf("the error tells the secret: %v", err)
		}
		if os.Getenv(envSecret)+os.Getenv(envSecretFile) != "" {
			t.Error("the secret is left in the environment")
		}
	}
}

// TestSingle: the only process of a job is told from one that nothing has started.
func TestSingle(t *testing.T) {
	for text, want := range map[string]bool{"": false, "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1": true, "RANK=0 WORLD_SIZE=1": true, "RANK=0 WORLD_SIZE=2": false, "WORLD_SIZE=1": false} {
		env := map[string]string{}
		for _, f := range strings.Fields(text) {
			k, v, _ := strings.Cut(f, "=")
			env[k] = v
		}
		if got := Single(func(k string) string { return env[k] }); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
