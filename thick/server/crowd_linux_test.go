package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/server"
)

// crowd is how many ADDs are under way at once, and residentLimit the size in KiB that the
// daemon stays below then.
const (
	crowd         = 500
	residentLimit = 150 << 10
)

// daemonAt is set, to the path of a socket, in a process that TestMain makes a daemon.
const daemonAt = "EMBEDCNI_TEST_DAEMON"

func TestMain(m *testing.M) {
	if path := os.Getenv(daemonAt); path != "" {
		if err := crowded(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// crowded serves until its input ends. It lets no ADD end before the whole crowd is there:
// then it writes its resident size.
func crowded(path string) error {
	b := newHeld("ADD")
	s, err := server.New(b, server.Options{Limits: server.Limits{Concurrent: 32}})
	if err != nil {
		return err
	}
	l, err := s.Listen(path)
	if err != nil {
		return err
	}
	go s.Serve(l)
	before, err := resident()
	if err != nil {
		return err
	}
	fmt.Println(before)
	for tick := time.NewTicker(time.Millisecond); server.Waiting(s) < crowd-32; {
		<-tick.C
	}
	at, err := resident()
	if err != nil {
		return err
	}
	fmt.Println(at)
	close(b.release)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// resident returns the resident size of this process in KiB.
func resident() (kib int, err error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	_, err = fmt.Sscan(after, &kib)
	return kib, err
}

// TestFiveHundredAtOnce: a daemon has 500 ADDs under way at once, with a backend that lets
// none of them end before all are there, and stays small. Its clients get their answers.
func TestFiveHundredAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "multus.sock")
	daemon := exec.Command(expect.Value(os.Executable())(t))
	daemon.Env = append(os.Environ(), daemonAt+"="+path)
	daemon.Stderr = os.Stderr
	stdin := expect.Value(daemon.StdinPipe())(t)
	stdout := bufio.NewReader(expect.Value(daemon.StdoutPipe())(t))
	expect.NoError(t, daemon.Start())
	defer func() { expect.NoError(t, stdin.Close(), daemon.Wait()) }()
	var before, at int
	expect.Value(fmt.Fscan(stdout, &before))(t)
	var clients sync.WaitGroup
	failed := make(chan error, crowd)
	for i := range crowd {
		clients.Go(func() {
			if err := add(path, fmt.Sprint("c", i)); err != nil {
				failed <- err
			}
		})
	}
	expect.Value(fmt.Fscan(stdout, &at))(t)
	clients.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	t.Logf("resident at the start: %d KiB; with %d ADDs under way: %d KiB", before, crowd, at)
	if at > residentLimit {
		t.Errorf("%d KiB are resident, more than %d", at, residentLimit)
	}
}

// add makes an ADD as a shim does.
func add(path, id string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	body := request("ADD", id)
	if _, err := conn.Write(append([]byte(head("/cni", len(body))), body...)); err != nil {
		return err
	}
	if status, body, err := readAnswer(conn); status != 200 || body != answered {
		return fmt.Errorf("status %d: %s, %w", status, body, err)
	}
	return nil
}
