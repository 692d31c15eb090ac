package cli

// MainOf is Main whose agents' connections and sessions rest after a time of their own.
var MainOf = mainOf
