package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// handle is a running worker.
type handle struct {
	spec   spec
	cmd    *exec.Cmd
	in     io.WriteCloser
	orders *json.Encoder
	answer *json.Decoder
	stay   int // number of containers that stay attached: 0 to stay-1
	next   int // number of the next temporary container
}

// startWorker starts a contender on its own host. A contenderError means that
// the contender failed, not the start.
func startWorker(s spec) (*handle, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), workerVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	// As on a host, its network namespace is that of process 1: there the library finds
	// paths to it without reading the mounts.
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	h := &handle{spec: s, cmd: cmd, in: in, orders: json.NewEncoder(in), answer: json.NewDecoder(out), next: passing}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	if _, err := h.read(); err != nil {
		return nil, errors.Join(err, h.stop())
	}
	return h, nil
}

// contenderError reports that a contender failed to do its work.
type contenderError struct{ text string }

func (e *contenderError) Error() string { return e.text }

func (h *handle) read() (reply, error) {
	var r reply
	if err := h.answer.Decode(&r); err != nil {
		return r, fmt.Errorf("the worker of %s gave no answer: %w", h.spec.Contender, err)
	}
	if r.Err != "" {
		return r, &contenderError{r.Err}
	}
	return r, nil
}

func (h *handle) do(o order) (reply, error) {
	if err := h.orders.Encode(o); err != nil {
		return reply{}, fmt.Errorf("the worker of %s takes no orders: %w", h.spec.Contender, err)
	}
	return h.read()
}

// cycle attaches new containers, does the other operations of verbs with them,
// and detaches them. It uses the network of the last permanent container, whose
// bridge has the most ports. The replies are by verb.
func (h *handle) cycle(verbs []string, count, atOnce int) (map[string]reply, error) {
	o := order{First: h.next, Count: count, AtOnce: atOnce, Network: network(max(h.stay-1, 0))}
	h.next += count
	replies := make(map[string]reply, len(verbs))
	for _, verb := range verbs {
		o.Verb = verb
		r, err := h.do(o)
		if err != nil {
			return nil, err
		}
		replies[verb] = r
	}
	return replies, nil
}

// stop ends the worker and, with it, its namespaces.
func (h *handle) stop() error {
	err := h.in.Close()
	if waitErr := h.cmd.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("the worker of %s: %w", h.spec.Contender, waitErr))
	}
	return err
}
