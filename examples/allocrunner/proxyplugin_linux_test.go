package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/embedcni/cni/netns"
)

// proxyPlugin is the type of the plugin that this test binary is under that name: it stands
// where consul-cni stands in the bridge network of a Nomad client.
const proxyPlugin = "redirect-cni"

// proxyArg is the argument of CNI that has a job's proxy: {"OutboundPort": 15001}. Without
// it the plugin does nothing.
const proxyArg = "PROXY_CONFIG"

// redirector is the plugin. It sends each outbound connection of a container to the port of the
// proxy in it, and passes the result before it on.
func redirector() {
	result, err := redirect(os.Getenv("CNI_COMMAND"))
	if err != nil {
		fmt.Printf(`{"cniVersion": "0.4.0", "code": 100, "msg": %q}`, err.Error())
		os.Exit(1)
	}
	os.Stdout.Write(result) // a failed write is an invalid result
	os.Exit(0)
}

func redirect(verb string) (result []byte, err error) {
	var conf struct{ PrevResult json.RawMessage }
	stdin, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = json.Unmarshal(stdin, &conf)
	}
	port, cerr := proxyPort(os.Getenv("CNI_ARGS"))
	if err = errors.Join(err, cerr); err != nil {
		return nil, err
	}
	path := os.Getenv("CNI_NETNS")
	switch {
	case verb == "ADD" && conf.PrevResult == nil:
		return nil, errors.New("no result of a plugin before")
	case port == 0:
	case verb == "ADD":
		err = nftIn(path, fmt.Sprintf(`table ip proxy { chain output { type nat hook output priority -100;
			oifname != "lo" meta l4proto tcp redirect to :%d; }; }`, port))
	case verb == "CHECK":
		err = nftIn(path, "list table ip proxy")
	case verb == "DEL" && path != "":
		if err = nftIn(path, "add table ip proxy; delete table ip proxy"); errors.Is(err, fs.ErrNotExist) {
			err = nil // the namespace is gone, and its rules with it
		}
	}
	if err != nil || verb != "ADD" {
		return nil, err
	}
	return conf.PrevResult, nil
}

// proxyPort returns the port in CNI_ARGS, 0 if there is none.
func proxyPort(args string) (port int, err error) {
	for arg := range strings.SplitSeq(args, ";") {
		if text, ok := strings.CutPrefix(arg, proxyArg+"="); ok {
			var config struct{ OutboundPort int }
			err = json.Unmarshal([]byte(text), &config)
			return config.OutboundPort, err
		}
	}
	return 0, nil
}

// nftIn has nft carry out commands in a network namespace.
func nftIn(path, commands string) error {
	return netns.Do(path, func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(commands)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("nft: %w: %s", err, out)
		}
		return err
	})
}
