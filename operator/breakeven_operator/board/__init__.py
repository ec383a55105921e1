"""The board: a read-only page about the services, made of what the operator has in memory already.

publication    the services as the last cycle left them        load_trail     loads that were seen since the operator started
board_rows     a service as one row                            board_list     the page of all services, and sums of their worth
curve_drawing  curves, the load of the last hours, and now     what_if        an answer for another load or acceptance
board_service  one service                                     board_access   who may see which namespaces
board_server   the socket, and views to HTML                   asked_receipts receipts of a service, asked beside the loop
"""
