# The words a Go engineer expects. Nothing here is needed: each is one command.

.PHONY: build install check quick test race lint bench fuzz soak interop generate clean

build: ## both programs, into bin/
	go build -trimpath -o bin/ ./cmd/...

install: ## into GOBIN
	go install ./cmd/...

check: ## everything, as continuous integration does it
	go run ./tools/check

quick: ## without the race detector, other platforms and real agents
	go run ./tools/check -quick

test:
	go test ./...

race:
	go test -race ./...

lint:
	go run ./tools/check -only format,comments,vet,staticcheck

bench: ## what docs/PERFORMANCE.md reports
	go test -run '^$$' -bench . -benchmem ./...

fuzz: ## each fuzz target for FUZZTIME
	go run ./tools/check -only fuzz -fuzztime $(or $(FUZZTIME),30s)

soak: ## kill hub, server, senders and workers again and again during 10,000 sends, 10,000 edits and 10,000 items of work
	go test -run '^TestAKilled' -timeout 60m -count $(or $(SOAK),5) ./internal/chat -chat.sends 10000 -v
	go test -run '^TestKilledHubs' -timeout 60m -count $(or $(SOAK),5) ./internal/documents -kill-edits 1000 -v
	go test -run '^TestKilledProcesses|^TestHubsAndTheirLink' -timeout 60m ./internal/agentnet -kill-items 10000 -v
	go test -run '^TestKilledHubsAndSessions' -timeout 60m ./internal/app/cli -session-kills 300 -v
	go test -run '^TestKilledHubsAndResting' -timeout 60m ./internal/app/cli -idle-kills 150 -v
	go test -run '^TestKilledHubsAndPrograms' -timeout 60m ./internal/app/cli -program-kills 150 -v

interop: ## with the real agents and clients; needs npm
	go run ./tools/check -only interop

generate: ## the files that are made from the code
	go run ./tools/docs

clean:
	rm -rf bin dist coverage.*
