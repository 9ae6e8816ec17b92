package main

import (
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/embedcni/cni/netns"
)

// serve answers HTTP in a container, while this process lives. A socket stays in the namespace
// that it was opened in, so only the opening happens there.
func serve(container string) error {
	var listener net.Listener
	err := netns.Do(container, func() (err error) {
		listener, err = net.Listen("tcp", ":80")
		return err
	})
	if err != nil {
		return err
	}
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "hello from web")
	}))
	return nil
}

// get prints the answer at a URL.
func get(url string) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	fmt.Print(url, " says ", string(answer))
	return err
}
