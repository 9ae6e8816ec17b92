//go:build unix

// Package scripted is a CNI plugin that does what a test tells it to: answer,
// fail, hang, print too much, kill itself. It is the test binary itself, run
// again: a link to it in a plugin directory is the plugin, and TestMain begins
// with
//
//	if scripted.IsPlugin() {
//		os.Exit(scripted.Main())
//	}
//
// The network configuration names the script, a JSON file that is read anew at
// each call, so that a test can change its mind between ADD and DEL:
//
//	{"type": "scripted", "script": "<path>"}
package scripted

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Script is what the plugin does. A verb that is not in it succeeds: ADD
// returns prevResult, or an interface and an address of its own.
type Script struct {
	Log   string // a file to which each call is appended as a line of JSON
	Verbs map[string]Action
}

// Action is what one verb does, in the order of the fields.
type Action struct {
	Fork        bool   // leave a child behind that holds stdout and stderr, and hangs
	Block       string // a FIFO to read from: waits until the test closes its end
	StderrBytes int
	Stderr      string
	StdoutBytes int
	Stdout      *string // instead of a result; what an error is, on exit
	Hang        bool
	Signal      int // kills itself
	Exit        int
}

// Call is a line of the log.
type Call struct {
	Verb, ContainerID, NetNS, IfName, Args, Path string

	Type  string
	Stdin json.RawMessage
	Env   []string
	NetNo string // what /proc/self/ns/net is
	Fds   int    // open descriptors beyond the standard three
}

// IsPlugin tells whether this process was started as a plugin.
func IsPlugin() bool { return os.Getenv("CNI_COMMAND") != "" }

// hangArg makes the process the child that Action.Fork leaves behind.
const hangArg = "scripted-hang"

// Main is the plugin. It does not come back: under the race detector os.Exit
// sleeps for a second before it ends the process, at each of a test's many
// plugin calls, and syscall.Exit does not.
func Main() int {
	if len(os.Args) > 1 && os.Args[1] == hangArg {
		hang()
	}
	code, err := run()
	if err != nil {
		fmt.Printf(`{"code": 999, "msg": %q}`, err.Error())
		code = 1
	}
	syscall.Exit(code)
	return code
}

func hang() {
	// A pipe of one's own that never has data: waits for good, without a timer.
	r, _, err := os.Pipe()
	if err == nil {
		_, err = r.Read(make([]byte, 1))
	}
	panic(fmt.Sprint("the wait that never ends has ended: ", err))
}

func run() (code int, err error) {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 0, err
	}
	var conf struct {
		CNIVersion string          `json:"cniVersion"`
		Script     string          `json:"script"`
		Type       string          `json:"type"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return 0, fmt.Errorf("configuration: %w", err)
	}
	script, err := Load(conf.Script)
	if err != nil {
		return 0, err
	}
	verb := os.Getenv("CNI_COMMAND")
	if err := script.log(verb, conf.Type, stdin); err != nil {
		return 0, err
	}
	action, told := script.Verbs[verb]
	if told {
		if err := action.do(); err != nil {
			return 0, err
		}
	}
	if verb == "ADD" && action.Stdout == nil && action.Exit == 0 {
		fmt.Print(result(conf.CNIVersion, conf.PrevResult))
	}
	return action.Exit, nil
}

// Load reads a script; one that does not exist does nothing special.
func Load(path string) (Script, error) {
	var s Script
	if path == "" {
		return s, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("script: %w", err)
	}
	return s, json.Unmarshal(data, &s)
}

// Save writes the script to path.
func (s Script) Save(path string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

func (s Script) log(verb, typ string, stdin []byte) error {
	if s.Log == "" {
		return nil
	}
	ns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	line, err := json.Marshal(Call{
		Verb: verb, ContainerID: os.Getenv("CNI_CONTAINERID"), NetNS: os.Getenv("CNI_NETNS"),
		IfName: os.Getenv("CNI_IFNAME"), Args: os.Getenv("CNI_ARGS"), Path: os.Getenv("CNI_PATH"),
		Type: typ, Stdin: stdin, Env: slices.Sorted(slices.Values(os.Environ())), NetNo: ns, Fds: inheritedFds(),
	})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n')) // one write: lines of parallel plugins do not mix
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// inheritedFds counts the lock files among the open descriptors; those the Go
// runtime opens for itself are none.
func inheritedFds() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	n := 0
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && filepath.Base(target) == "locks" {
			n++
		}
	}
	return n
}

// Calls reads the log at path.
func Calls(path string) ([]Call, error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var calls []Call
	dec := json.NewDecoder(strings.NewReader(string(data)))
	for dec.More() {
		var c Call
		if err := dec.Decode(&c); err != nil {
			return nil, err
		}
		calls = append(calls, c)
	}
	return calls, nil
}

func (a Action) do() error {
	if a.Fork {
		child := exec.Command("/proc/self/exe", hangArg)
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return err
		}
	}
	if a.Block != "" {
		if _, err := os.ReadFile(a.Block); err != nil {
			return err
		}
	}
	if err := flood(os.Stderr, a.StderrBytes); err != nil {
		return err
	}
	fmt.Fprint(os.Stderr, a.Stderr)
	if err := flood(os.Stdout, a.StdoutBytes); err != nil {
		return err
	}
	if a.Stdout != nil {
		fmt.Print(*a.Stdout)
	}
	if a.Hang {
		hang()
	}
	if a.Signal != 0 {
		return syscall.Kill(os.Getpid(), syscall.Signal(a.Signal))
	}
	return nil
}

func flood(w io.Writer, n int) error {
	chunk := []byte(strings.Repeat("x", 1<<16))
	for n > 0 {
		k := min(n, len(chunk))
		if _, err := w.Write(chunk[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// result is what ADD returns when nothing else is asked for.
func result(version string, prev json.RawMessage) string {
	if prev != nil {
		return string(prev)
	}
	if version == "" || version == "0.1.0" || version == "0.2.0" {
		return fmt.Sprintf(`{"cniVersion": %q, "ip4": {"ip": "10.9.0.2/24", "gateway": "10.9.0.1"}}`, version)
	}
	family := ""
	if strings.HasPrefix(version, "0.") {
		family = `"version": "4", `
	}
	return fmt.Sprintf(`{"cniVersion": %q,
		"interfaces": [{"name": %q, "mac": "02:00:00:00:00:01", "sandbox": %q}],
		"ips": [{%s"interface": 0, "address": "10.9.0.2/24", "gateway": "10.9.0.1"}],
		"routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}]}`,
		version, os.Getenv("CNI_IFNAME"), os.Getenv("CNI_NETNS"), family)
}
