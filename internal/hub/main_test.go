package hub_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		fmt.Println("error", runChild(dir))
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
