// An OCI registry in memory, for tests: go-containerregistry's own, behind a login if one is given.
//
//	registry [-listen ADDRESS] [-user NAME -password WORD [-token]] [-referrers]
//
// It listens on a free port of 127.0.0.1, if not told otherwise, and prints the address. With -token it wants a bearer token, which it gives to the
// user under /token, as registries in the wild do; without, the user's name and password. Only with -referrers does it
// keep the list of who refers to what.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"github.com/google/go-containerregistry/pkg/registry"
)

const token = "a-token-for-tests"

func main() {
	user := flag.String("user", "", "that may push and pull; everybody without")
	password := flag.String("password", "", "of the user")
	bearer := flag.Bool("token", false, "want a token instead of the password")
	referrers := flag.Bool("referrers", false, "answer who refers to what")
	listen := flag.String("listen", "127.0.0.1:0", "host and port")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	handler := registry.New(registry.WithReferrersSupport(*referrers), registry.Logger(log.New(io.Discard, "", 0)))
	known := func(request *http.Request) bool {
		name, word, ok := request.BasicAuth()
		return ok && name == *user && word == *password
	}
	if *user != "" && *bearer {
		handler = tokens(handler, known, "http://"+listener.Addr().String()+"/token")
	} else if *user != "" {
		handler = guarded(handler, known, `Basic realm="tests"`)
	}
	log.Fatal(http.Serve(listener, handler))
}

// guarded lets those through who are known.
func guarded(handler http.Handler, known func(*http.Request) bool, challenge string) http.Handler {
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		if !known(request) {
			writer.Header().Set("WWW-Authenticate", challenge)
			http.Error(writer, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}`, http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(writer, request)
	})
}

// tokens gives a token to those who are known, and lets those through who have it.
func tokens(handler http.Handler, known func(*http.Request) bool, realm string) http.Handler {
	has := func(request *http.Request) bool { return request.Header.Get("Authorization") == "Bearer "+token }
	mux := http.NewServeMux()
	mux.Handle("/", guarded(handler, has, fmt.Sprintf(`Bearer realm="%s",service="tests"`, realm)))
	mux.Handle("/token", guarded(http.HandlerFunc(func(writer http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(writer, `{"token":"%s"}`, token)
	}), known, `Basic realm="tests"`))
	return mux
}
