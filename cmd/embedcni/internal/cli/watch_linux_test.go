package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"regexp"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/cmd/embedcni/internal/watch"
	"github.com/embedcni/cni/internal/expect"
)

// follow runs the program until end is called, and returns its lines.
func (s *session) follow(args ...string) (lines <-chan string, end func() int) {
	ctx, cancel := context.WithCancel(s.t.Context())
	read, write := io.Pipe()
	streams := Streams{
		Out: write, Err: io.Discard, Getenv: func(name string) string { return s.env[name] }, Now: time.Now,
		Columns: func(io.Writer) int { return 0 },
	}
	code := make(chan int, 1)
	go func() {
		code <- Run(ctx, append(args, "--state-dir", s.host.StateDir, "--host-netns", s.host.NetNS), streams)
		expect.Succeeds(s.t, "close the pipe", write.Close())
	}()
	all := make(chan string, 100)
	go func() {
		for scanner := bufio.NewScanner(read); scanner.Scan(); {
			all <- scanner.Text()
		}
		close(all)
	}()
	return all, func() int {
		cancel()
		return expect.Await(s.t, "the end of the program", code)
	}
}

// A watch has a line for each event, as text or as JSON, and ends when it is interrupted.
func TestWatch(t *testing.T) {
	s := newSession(t)
	s.attach("web-1")
	text, endText := s.follow("watch", "--color=always")
	objects, endObjects := s.follow("watch", "--json")
	expect.Contains(t, "first line", expect.Await(t, "line", text), "watching ", "attachments on record in ", ": 1")
	expect.Contains(t, "first object", expect.Await(t, "line", objects), `"event":"watching"`)
	end := s.hostEnd("web-1")
	expect.NoError(t, s.host.Do(func() error {
		link, err := netlink.LinkByName(end)
		if err != nil {
			return err
		}
		return netlink.LinkSetNoMaster(link)
	}))
	line := regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d\d\d  \x1b\[31mlost     \x1b\[0m  web-1 eth0 on pods: bridge port ` + end + ` is missing$`)
	got := expect.Await(t, "line", text)
	expect.That(t, line.MatchString(got), "the line is %q", got)
	var event watch.Event
	expect.NoError(t, json.Unmarshal([]byte(expect.Await(t, "line", objects)), &event))
	event.Time = time.Time{}
	expect.Same(t, "object", event, watch.Event{Event: watch.Lost, ContainerID: "web-1", Network: "pods", IfName: "eth0", Detail: "bridge port " + end + " is missing"})
	expect.Same(t, "exit code", endText(), exitOK)
	expect.Same(t, "exit code", endObjects(), exitOK)
	_, _, code := s.run("watch", "--timeout", "1ms")
	expect.Same(t, "exit code after --timeout", code, exitOK)
}
