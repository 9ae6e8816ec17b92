package main

import (
	"embed"
	"io/fs"
)

// The networks are files, to be read and changed. They are in the program, so that it
// needs no checkout.
//
//go:embed networks/*.conflist
var networkFiles embed.FS

//go:embed jobs.json
var exampleJobs []byte

// networks returns the configurations of all networks.
func networks() (all [][]byte) {
	files, err := fs.Glob(networkFiles, "networks/*")
	for _, f := range files {
		data, rerr := networkFiles.ReadFile(f)
		if err = rerr; err != nil {
			break
		}
		all = append(all, data)
	}
	if err != nil {
		panic(err) // they are compiled in
	}
	return all
}
