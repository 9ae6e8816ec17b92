//go:build unix

// Package scripted is a CNI plugin that follows a test's script: it answers,
// fails, hangs, prints too much, or kills itself. The plugin is a link to the
// test binary in a plugin directory, and TestMain begins with
//
//	if scripted.IsPlugin() {
//		scripted.Main()
//	}
//
// The network configuration names the script, a JSON file. It is read at each
// call, so that a test can change it between ADD and DEL:
//
//	{"type": "scripted", "script": "<path>"}
//
// Without that, the script is beside the plugin, see [Beside].
package scripted

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Script defines the plugin's actions. A verb without one succeeds: ADD returns
// prevResult, or a result with its own interface and address.
type Script struct {
	Log   string // a file to which each call is appended as a line of JSON
	Ends  bool   // also log the end of each call
	Verbs map[string]Action

	// Delegates has the plugin run those to which its configuration delegates, after the
	// call is logged and before its own action.
	Delegates bool
}

// Action is the script of one verb, in the order of the fields.
type Action struct {
	Fork        bool   // leave a child behind that holds stdout and stderr, and hangs
	Block       string // a FIFO to read, until the test closes its end; $CNI_… is replaced
	StderrBytes int
	Stderr      string
	StdoutBytes int
	Stdout      *string // replaces the result or, with Exit, the error
	Hang        bool
	Signal      int // to itself
	Exit        int
}

// Call is a line of the log.
type Call struct {
	Verb, ContainerID, NetNS, IfName, Args, Path string

	Type       string
	Executable string // its path
	Ended      bool   // the end of a call
	Stdin      json.RawMessage
	Exact      string // Stdin byte for byte
	Env        []string
	NetNo      string // target of /proc/self/ns/net
	Fds        int    // open descriptors beyond the standard three
}

// IsPlugin reports whether this process was started as a plugin.
func IsPlugin() bool { return os.Getenv("CNI_COMMAND") != "" }

// hangArg makes the process the child that Action.Fork leaves behind.
const hangArg = "scripted-hang"

// Main runs the plugin and never returns.
//
// It does not call os.Exit, which sleeps for a second in a binary built with
// -race. A test of a hundred calls would take minutes.
func Main() {
	if len(os.Args) > 1 && os.Args[1] == hangArg {
		Hang()
	}
	code, err := run()
	if err != nil {
		fmt.Printf(`{"code": 999, "msg": %q}`, err.Error())
		code = 1
	}
	syscall.Exit(code)
}

// Hang never returns.
func Hang() {
	// A pipe that never has data: it waits for good without a timer.
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
	script, err := load(conf.Script)
	if err != nil {
		return 0, err
	}
	call, err := thisCall(conf.Type, stdin)
	if err != nil {
		return 0, err
	}
	if err := script.log(call); err != nil {
		return 0, err
	}
	var delegated json.RawMessage
	if script.Delegates {
		if delegated, err = delegate(stdin); err != nil {
			return 0, err
		}
	}
	action := script.Verbs[call.Verb]
	if err := action.do(); err != nil {
		return 0, err
	}
	if script.Ends {
		call.Ended = true
		if err := script.log(call); err != nil {
			return 0, err
		}
	}
	if call.Verb == "ADD" && action.Stdout == nil && action.Exit == 0 {
		fmt.Print(result(conf.CNIVersion, cmp.Or(string(delegated), string(conf.PrevResult))))
	}
	return action.Exit, nil
}

// Beside is added to a plugin's path for the script that it follows if its
// configuration names none.
const Beside = ".script"

// load reads a script: the one that the configuration names, or else the one beside the
// plugin, which does nothing special if there is none.
func load(named string) (s Script, err error) {
	data, err := os.ReadFile(cmp.Or(named, os.Args[0]+Beside))
	if named == "" && errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
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

func thisCall(typ string, stdin []byte) (Call, error) {
	ns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return Call{}, err
	}
	return Call{
		Verb: os.Getenv("CNI_COMMAND"), ContainerID: os.Getenv("CNI_CONTAINERID"), NetNS: os.Getenv("CNI_NETNS"),
		IfName: os.Getenv("CNI_IFNAME"), Args: os.Getenv("CNI_ARGS"), Path: os.Getenv("CNI_PATH"),
		Type: typ, Executable: os.Args[0], Stdin: stdin, Exact: string(stdin),
		Env: slices.Sorted(slices.Values(os.Environ())), NetNo: ns, Fds: lockFds(),
	}, nil
}

func (s Script) log(call Call) error {
	if s.Log == "" {
		return nil
	}
	line, err := json.Marshal(call)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n')) // one write, so that lines of parallel plugins do not mix
	return errors.Join(err, f.Close())
}

// lockFds counts the lock files among the open descriptors, without those that the Go
// runtime opens for itself.
func lockFds() (n int) {
	entries, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range entries {
		if target, err := os.Readlink(fd); err == nil && filepath.Base(target) == "locks" {
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
	whole := data[:bytes.LastIndexByte(data, '\n')+1] // a plugin may be writing the rest
	var calls []Call
	dec := json.NewDecoder(bytes.NewReader(whole))
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
		if _, err := os.ReadFile(os.ExpandEnv(a.Block)); err != nil {
			return err
		}
	}
	if _, err := os.Stderr.WriteString(strings.Repeat("x", a.StderrBytes) + a.Stderr); err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString(strings.Repeat("x", a.StdoutBytes)); err != nil {
		return err
	}
	if a.Stdout != nil {
		fmt.Print(*a.Stdout)
	}
	if a.Hang {
		Hang()
	}
	if a.Signal != 0 {
		return syscall.Kill(os.Getpid(), syscall.Signal(a.Signal))
	}
	return nil
}

// result returns ADD's default output: prev, unless it is empty.
func result(version, prev string) string {
	if prev != "" {
		return prev
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
