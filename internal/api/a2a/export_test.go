package a2a

// For the tests of package a2a_test.
var (
	CamelKeys = camelKeys
	CamelCase = camelCase
	SplitPath = splitPath
)
